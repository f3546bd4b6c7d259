# The shell's side of a session: runs call after call in one bash and says how each ended. A call comes on descriptor
# 100 as fields that end with NUL: id, cwd, number of variables, NAME=value…, number of arguments, arguments…, code.
# Its answer is a line of JSON on 101. Whatever is written to 102 the kernel turns into SIGINT for all of us.
# `source` and not `eval` in a function: what the code declares is global, and an interrupt can leave it.
set -T # so that the trap below reaches into functions
__sbx_unwind() { # before each command after an interrupt: leave the function or the sourced code, until none is left
    if ((${#FUNCNAME[@]} > 1)); then return 2; fi
    trap - DEBUG
    shopt -u extdebug
    return 0
}
trap '[[ $__sbx_runs ]] && { __sbx_hit=1; shopt -s extdebug; trap __sbx_unwind DEBUG; }' INT
__sbx_runs='' __sbx_hit=''
__sbx_field() { IFS= read -r -d '' -u 100 "$1"; }
while __sbx_field __sbx_id; do
    __sbx_field __sbx_cwd && __sbx_field __sbx_n || exit 1
    while ((__sbx_n-- > 0)); do __sbx_field __sbx_f && export "$__sbx_f"; done
    __sbx_field __sbx_n || exit 1
    set --
    while ((__sbx_n-- > 0)); do __sbx_field __sbx_f && set -- "$@" "$__sbx_f"; done
    __sbx_field __sbx_code || exit 1
    __sbx_hit='' __sbx_runs=1
    [[ -z $__sbx_cwd ]] || cd -- "/workspace/work/$__sbx_cwd"
    source /proc/self/fd/103 "$@" 103<<<"exec 103<&-; $__sbx_code" 100<&- 101>&- 102<&-
    __sbx_end=$? __sbx_runs=''
    [[ -z $__sbx_hit ]] || __sbx_end=130
    printf '{"id":"%s","exit_code":%d}\n' "$__sbx_id" "$__sbx_end" >&101
done

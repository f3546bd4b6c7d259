# The interpreter's side of a session: runs call after call in one __main__ and says how each ended.
# Calls come as lines of JSON on descriptor 100, one answer goes back for each on 101. Whatever is written to 102 the
# kernel turns into SIGINT. The code of a call runs in this process, so nothing said on 101 is believed by anybody.
# What few calls need is imported when they do: a session begins sooner, and one that waits ahead is smaller.
import atexit, builtins, io, json, os, signal, sys, types

CALLS, ANSWERS, INTERRUPTS = 100, 101, 102
HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: not of the interpreter's own making
IMMUTABLE_TYPE = 1 << 8  # Py_TPFLAGS_IMMUTABLETYPE (3.10): nothing can be set on it
VALUE_MAX, TEXT_MAX, LINE_MAX, FRAMES_MAX, FIGURES_MAX = 16384, 16384, 256, 64, 32
ARTIFACTS = "/workspace/artifacts"
SELF = os.getpid()


def idle(signum, frame):
    """An interrupt that comes when nothing runs interrupts nothing."""


def cut(text, most):
    return text if len(text) <= most else text[: most - 1] + "\u2026"


def own(tb):
    """The same traceback from the first frame that is not ours."""
    while tb is not None and tb.tb_frame.f_globals is globals():
        tb = tb.tb_next
    return tb


def told(error):
    import traceback

    kind, tb = type(error), own(error.__traceback__)
    frames = [
        {"file": cut(f.filename, LINE_MAX), "line": f.lineno or 0, "function": cut(f.name, LINE_MAX), "source": cut(f.line or "", LINE_MAX)}
        for f in traceback.extract_tb(tb)
    ]
    try:
        message = str(error)
    except BaseException:
        message = "<it can't be printed>"
    text = "".join(traceback.format_exception(kind, error, tb))
    left_out = max(0, len(frames) - FRAMES_MAX)
    return {
        "type": cut(kind.__qualname__, LINE_MAX),
        "message": cut(message, TEXT_MAX),
        "frames": frames[-FRAMES_MAX:],
        "frames_left_out": left_out,
        "text": text if len(text) <= TEXT_MAX else cut(text[: TEXT_MAX // 2], TEXT_MAX // 2) + "\n" + text[-TEXT_MAX // 2 :],
    }


def give_stdin(data):
    """Standard input of this call: the bytes that came with it, or its end."""
    import base64, tempfile

    if data is None:
        fd = os.open(os.devnull, os.O_RDONLY)
    else:
        file = tempfile.TemporaryFile()
        file.write(base64.b64decode(data))
        file.flush()
        file.seek(0)
        fd = os.dup(file.fileno())
        file.close()
    os.dup2(fd, 0)
    os.close(fd)
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)), errors="surrogateescape")


def figures(number):
    """Saves the figures that are open, if the code uses matplotlib, and closes them."""
    plot = sys.modules.get("matplotlib.pyplot")
    if plot is None:
        return []
    saved = []
    for place in list(plot.get_fignums())[:FIGURES_MAX]:
        name = "figure-%d-%d.png" % (number, len(saved) + 1)
        plot.figure(place).savefig(os.path.join(ARTIFACTS, name))
        plot.close(place)
        saved.append(name)
    return saved


def run(main, call):
    """One call. Its value, if its last statement is an expression."""
    import ast, linecache

    if call.get("cwd") is not None:
        os.chdir(os.path.join("/workspace/work", call["cwd"]))
    elif end is not None:
        os.chdir("/workspace/work")
    if end is not None:
        settle()
    os.environ.setdefault("MPLBACKEND", "Agg")  # there is no screen
    os.environ.update(call.get("env") or {})
    sys.argv[:] = ["-c"] + list(call.get("args") or [])
    give_stdin(call.get("stdin"))
    name, code = "<call %d>" % call["number"], call["code"]
    linecache.cache[name] = (len(code), None, code.splitlines(True), name)
    tree, last = compile(code, name, "exec", ast.PyCF_ONLY_AST, dont_inherit=True), None
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        last = ast.Expression(tree.body.pop().value)
    exec(compile(tree, name, "exec", dont_inherit=True), main)
    if last is None:
        return None
    value = eval(compile(last, name, "eval", dont_inherit=True), main)
    if value is None:
        return None
    builtins._ = value
    return repr(value)


def prepared(call):
    """Imports ahead for whoever comes; a module that is not there will be missed by whoever asks for it."""
    for name in call["preload"]:
        try:
            __import__(name)
        except Exception:
            pass
    # What a first use touches and looks up is touched and looked up before the wait.
    json.loads(json.dumps({"code": REHEARSAL, "args": [], "env": {}}).encode())
    exec(compile(REHEARSAL, "<string>", "exec", dont_inherit=True), {})
    global end
    end = End()
    end.leaves_no_trace()
    return {"id": call["id"], "exit_code": 0}


REHEARSAL = """
def f(a, *b, c=1):
    try:
        return [x for x in (a, c) if x] or {k: str(k) for k in b}
    except ValueError as error:
        raise
class C:
    x = f(1, 2)
import sys
f"{C.x}"
"""


class End:
    """The end of a program that nobody would see: all it left is plain memory. Then the interpreter need not take
    itself apart piece by piece, which takes longer than most programs. Whoever could tell gets the whole end."""

    SEEN_MAX = 20000
    # Nothing happens when one of these goes but that others go.
    PLAIN = frozenset(
        [dict, list, tuple, set, frozenset, property, staticmethod, classmethod, types.FunctionType, types.CellType]
        + [types.MethodType, types.BuiltinFunctionType, types.FrameType, types.TracebackType, types.MappingProxyType]
        + [types.GetSetDescriptorType, types.MemberDescriptorType, types.MethodDescriptorType, types.WrapperDescriptorType]
        + [types.ClassMethodDescriptorType, types.SimpleNamespace, types.GenericAlias]
    )
    # Modules without a source file whose things are plain as well.
    BUILT_IN = frozenset("math cmath time _datetime _json _random _bisect _heapq _struct _csv _statistics _string _sha512".split())

    def __init__(self):
        import _thread, _weakref, gc

        self.gc, self.threads, self.ref = gc, _thread, _weakref.ref
        self.streams = (sys.stdout, sys.stderr)
        gc.collect()
        gc.freeze()  # from here on what is not frozen is the program's
        # Counting what is frozen would tell whether the program froze more, but walks through all of it, from cold caches
        # half of what a short program takes. It would have frozen this as well.
        self.canary = []
        classes = [object]
        known = {object}
        for one in classes:  # grows as we go
            below = [kind for kind in type.__subclasses__(one) if kind not in known]
            known.update(below)
            classes += below
        # A program may still give one of them a destructor, if it was not made in C.
        self.classes = [one for one in classes if self.can_be_changed(one) and not hasattr(one, "__del__")]

    @staticmethod
    def can_be_changed(kind):
        return kind.__flags__ & (HEAP_TYPE | IMMUTABLE_TYPE) == HEAP_TYPE

    def made_in_python(self, kind):
        """Whether a class and all it is made of were written in Python, or are plain."""

        def good(one):
            if one is object or one in self.PLAIN or self.built_in_error(one):
                return True
            # Only a class statement adds this descriptor, to the first class of a line that can be referred to weakly.
            return "__weakref__" in vars(one) or one.__base__ is not object and "__weakref__" in vars(one.__base__)

        return all(map(good, kind.__mro__))

    @staticmethod
    def built_in_error(kind):
        return issubclass(kind, BaseException) and not kind.__flags__ & HEAP_TYPE

    def plain_module(self, own):
        """One without a source file is somebody's C, and what goes with its things is not known."""
        file = own.get("__file__")
        by_hand = own.get("__spec__") is None
        return by_hand or own.get("__name__") in self.BUILT_IN or type(file) is str and file.endswith(".py")

    def plain(self, thing):
        kind = type(thing)
        if kind in self.PLAIN:
            return True
        if kind is type:
            return not hasattr(thing, "__del__")
        if kind is self.ref:
            return thing.__callback__ is None
        if kind is types.ModuleType:
            return self.plain_module(vars(thing))
        if self.built_in_error(kind):
            return True
        return type(kind) is type and not hasattr(kind, "__del__") and self.made_in_python(kind)

    def froze(self, seen):
        """Whether the program froze what the collector has `seen`, and with it our canary."""
        return not any(one is self.canary for one in seen)

    def leaves_no_trace(self):
        gc = self.gc
        if sys.gettrace() or sys.getprofile() or gc.callbacks or gc.get_debug():
            return False
        if self.threads._count() or (sys.stdout, sys.stderr) != self.streams:
            return False
        if "_ctypes" in sys.modules or "_cffi_backend" in sys.modules:
            return False  # C may have been called, and has streams and an end of its own
        seen = gc.get_objects()
        if len(seen) > self.SEEN_MAX or self.froze(seen):
            return False
        if any(hasattr(one, "__del__") for one in self.classes):
            return False
        return all(map(self.plain, seen))

    def take(self, code):
        """Ends the process if that is all the same, as the interpreter would up to the point where it takes itself apart."""
        if "threading" in sys.modules:
            sys.modules["threading"]._shutdown()
        atexit._run_exitfuncs()
        try:
            if not self.leaves_no_trace():
                return
            for stream in self.streams:
                stream.flush()
        except BaseException:
            return  # the interpreter's own end says it
        os._exit(code)


end = None


def become(call):
    """Becomes the program of this call: its environment, directory, arguments and seeds."""
    for fd in (CALLS, ANSWERS, INTERRUPTS):
        os.close(fd)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if "random" in sys.modules:
        sys.modules["random"].seed()  # its state is older than this call
    sys.argv[:] = ["-c"] + call["args"]
    sys.orig_argv[:] = ["python3", "-c", call["code"]] + call["args"]
    if call["env"] is not None:
        os.environ.clear()
        os.environ.update(call["env"])
    os.chdir("/workspace/work")  # what was mounted over it since we came here
    for name in call["cwd"].split("/") if call["cwd"] else ():
        fd = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW)
        os.fchdir(fd)
        os.close(fd)


def settle():
    """Lives on for a session: nothing is kept from the collector, and the seeds are its own."""
    global end
    end.gc.unfreeze()
    end = None
    if "random" in sys.modules:
        sys.modules["random"].seed()


def show(code, text):
    """Since 3.13 a traceback shows the lines of what came with -c: those of the call from here on, no longer ours."""
    lines = sys.modules.get("linecache")
    if not hasattr(lines, "_register_code"):
        return
    if hasattr(lines, "_interactive_cache"):
        lines._interactive_cache.clear()
        lines._register_code(code, text, "<string>")
    else:  # 3.13.0 knows them by the name of the file alone
        lines._register_code("<string>", text, "<string>")


def once(main, call):
    """Becomes what `python3 -c` would be: no way back to us, no answer, and the interpreter's own end."""
    become(call)
    code = 0
    try:
        program = compile(call["code"], "<string>", "exec", dont_inherit=True)
        show(program, call["code"])
        exec(program, main)
    except SystemExit as left:
        code = 0 if left.code is None else left.code
        if type(code) is not int or not -(2**31) <= code < 2**31:
            raise
    except BaseException as error:
        tb = error.__traceback__ = own(error.__traceback__)
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, tb
        del tb
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1
        if isinstance(error, KeyboardInterrupt):
            sys.excepthook = lambda *said: None
            raise  # it ends by the signal
    end.take(code & 255)
    if not end.froze(end.gc.get_objects()):
        end.gc.unfreeze()  # what waited is the collector's again; what the program froze stays so
    sys.exit(code)


def answer(main, call):
    said = {"id": call["id"], "exit_code": 0, "value": None, "value_truncated": False, "error": None, "figures": []}
    try:
        try:
            if signal.getsignal(signal.SIGINT) is idle:
                signal.signal(signal.SIGINT, signal.default_int_handler)
            value = run(main, call)
            said["figures"] = figures(call["number"])
        finally:
            if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                signal.signal(signal.SIGINT, idle)
        if value is not None:
            said["value"], said["value_truncated"] = cut(value, VALUE_MAX), len(value) > VALUE_MAX
    except SystemExit:
        raise
    except BaseException as error:
        signal.signal(signal.SIGINT, idle)
        said["error"] = told(error)
        said["exit_code"] = 130 if isinstance(error, KeyboardInterrupt) else 1
        try:
            sys.stderr.write(said["error"]["text"])
        except BaseException:
            pass  # the code closed or replaced it; the answer has the text as well
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        try:
            stream.flush()
        except BaseException:
            pass  # closed by the code
    if os.getpid() != SELF:
        os._exit(said["exit_code"])  # a child that the code forked and did not end
    return said


def serve():
    for fd in (CALLS, ANSWERS, INTERRUPTS):
        os.set_inheritable(fd, False)
    signal.signal(signal.SIGINT, idle)
    module = types.ModuleType("__main__")
    module.__builtins__ = builtins
    module.__annotations__ = {}
    module.__loader__ = __loader__
    sys.modules["__main__"] = module
    for line in open(CALLS, "rb", closefd=False):
        call = json.loads(line)
        if "once" in call:
            return once(module.__dict__, call)
        said = prepared(call) if "preload" in call else answer(module.__dict__, call)
        said = json.dumps(said).encode() + b"\n"
        while said:
            said = said[os.write(ANSWERS, said) :]


serve()

//! Man pages and completions, made of the command line itself, so that they can't say anything else.
//!
//! ```text
//! DIR/man/<name>.<section>, <name>-<verb>.<section> …      a page for the command and one for each verb that is shown
//! DIR/completions/{bash,zsh,fish}/                         as each shell wants the file called
//! ```
//!
//! `make install` and the package call it through hidden ways in (`sandboxctl manual DIR`, `sandboxd --manual DIR`). A
//! directory that can't be written is the error of the call.
#![forbid(unsafe_code)]

use clap::Command;
use clap_complete::Shell;
use std::fs::{File, create_dir_all};
use std::io::{self, BufWriter, Write};
use std::path::Path;

/// Writes everything about a command below `directory`.
pub fn write(command: Command, section: &str, directory: &Path) -> io::Result<()> {
    let man = directory.join("man");
    create_dir_all(&man)?;
    let name = command.get_name().to_owned();
    let mut built = command.clone().disable_help_subcommand(true);
    built.build(); // hands global options down, as `--help` shows them, and gives each verb its page's name
    pages(built, section, &man)?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        let file = match shell {
            Shell::Zsh => format!("_{name}"),
            Shell::Fish => format!("{name}.fish"),
            _ => name.clone(),
        };
        let directory = directory.join("completions").join(shell.to_string());
        create_dir_all(&directory)?;
        let mut out = BufWriter::new(File::create(directory.join(file))?);
        clap_complete::generate(shell, &mut command.clone(), &name, &mut out);
        out.flush()?;
    }
    Ok(())
}

/// One page, and one for each verb below it that is shown.
fn pages(command: Command, section: &str, directory: &Path) -> io::Result<()> {
    for verb in command.get_subcommands().filter(|verb| !verb.is_hide_set()).cloned() {
        pages(verb, section, directory)?;
    }
    clap_mangen::Man::new(command).section(section).generate_to(directory).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn names(directory: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(directory).expect("a directory").flatten();
        let mut names: Vec<_> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    #[test]
    fn every_verb_that_is_shown_has_a_page_and_every_shell_its_file() {
        let directory = tempfile::tempdir().expect("a directory");
        write(crate::ctl::Cli::command(), "1", directory.path()).expect("it can be written");
        write(crate::daemon::Arguments::command(), "8", directory.path()).expect("it can be written");
        let pages = names(&directory.path().join("man"));
        let command = crate::ctl::Cli::command();
        for verb in command.get_subcommands() {
            let page = format!("sandboxctl-{}.1", verb.get_name());
            assert_eq!(pages.contains(&page), !verb.is_hide_set(), "{page} in {pages:?}");
        }
        for page in ["sandboxctl.1", "sandboxctl-token-create.1", "sandboxd.8"] {
            assert!(pages.contains(&page.to_owned()), "{page} in {pages:?}");
        }
        let run = std::fs::read_to_string(directory.path().join("man/sandboxctl-run.1")).expect("the page");
        assert!(run.contains("\\-\\-memory") && run.contains("\\-\\-socket"), "{run}");
        for (shell, file) in [("bash", "sandboxctl"), ("zsh", "_sandboxctl"), ("fish", "sandboxctl.fish")] {
            let path = directory.path().join("completions").join(shell).join(file);
            let text = std::fs::read_to_string(path).expect("the file");
            assert!(text.contains("evidence") && text.contains("memory"), "{shell}");
        }
    }
}

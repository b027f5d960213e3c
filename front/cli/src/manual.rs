//! `highwater manual`: man pages and completions of shells, from the definition of the command
//! line. `make install` runs it.

use crate::Refusal;
use clap::builder::PossibleValuesParser;
use clap::{Arg, Args, Command};
use clap_complete::Shell;
use highwater_command::{unwritable, write_file, write_man_pages};
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The file of completions that each shell reads, below share.
const SHELLS: [(Shell, &str); 3] = [
    (Shell::Bash, "bash-completion/completions/highwater"),
    (Shell::Zsh, "zsh/site-functions/_highwater"),
    (Shell::Fish, "fish/vendor_completions.d/highwater.fish"),
];

/// Write man pages, and completions for bash, zsh and fish
#[derive(Args)]
pub(crate) struct Manual {
    /// The directory share of the installation, such as /usr/local/share
    #[arg(value_name = "DIR")]
    share: PathBuf,
}

impl Manual {
    /// Writes the files of `definition`, the whole command line.
    pub(crate) fn execute(&self, definition: Command) -> Result<ExitCode, Refusal> {
        let written = write(&self.share, definition);
        written.map(|()| ExitCode::SUCCESS).map_err(|error| unwritable(&self.share, &error))
    }
}

fn write(share: &Path, definition: Command) -> io::Result<()> {
    let mut completed =
        definition.clone().mut_subcommands(|command| command.mut_args(with_choices));
    for (shell, path) in SHELLS {
        let mut text = Vec::new();
        clap_complete::generate(shell, &mut completed, "highwater", &mut text);
        write_file(&share.join(path), &text)?;
    }
    write_man_pages(share, definition)
}

/// Adds the possible values to an option whose value name lists them all, such as `on|off`.
fn with_choices(option: Arg) -> Arg {
    let name = option.get_value_names().and_then(|names| names.first());
    let words: Vec<String> =
        name.into_iter().flat_map(|name| name.split('|')).map(str::to_owned).collect();
    let is_word =
        |word: &String| word.bytes().all(|byte| byte == b'-' || byte.is_ascii_lowercase());
    match words.len() > 1 && words.iter().all(is_word) {
        true => option.value_parser(PossibleValuesParser::new(words)),
        false => option,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;
    use highwater_platform::testing::skip_or_fail;

    fn written() -> tempfile::TempDir {
        let share = tempfile::tempdir().expect("a directory");
        write(share.path(), crate::Cli::command()).expect("written");
        share
    }

    #[test]
    fn each_command_has_a_page_with_all_its_options() {
        let share = written();
        let page = |name: &str| std::fs::read_to_string(share.path().join("man/man1").join(name));
        for command in crate::Cli::command().get_subcommands() {
            let name = command.get_name();
            let page = page(&format!("highwater-{name}.1")).expect("a page");
            let shown = command.get_arguments().filter(|option| !option.is_hide_set());
            for option in shown.filter_map(|option| option.get_long()) {
                let text = option.replace('-', "\\-");
                assert!(page.contains(&format!("\\-\\-{text}")), "{name} --{option}\n{page}");
            }
        }
        let whole = page("highwater.1").expect("a page");
        assert!(whole.contains("highwater\\-run(1)"), "{whole}");
        assert!(page("highwater-help.1").is_err());
    }

    #[test]
    fn a_place_that_cannot_be_written_to_is_refused() {
        let manual = Manual { share: "/proc/none".into() };
        let refusal = manual.execute(crate::Cli::command()).unwrap_err();
        assert!(refusal.what().starts_with("cannot write below '/proc/none': "), "{refusal}");
    }

    /// The completions that a shell offers after `words`.
    #[track_caller]
    fn assert_completes(words: &[&str], expected: &str) {
        let share = written();
        let script = share.path().join(SHELLS[0].1);
        let line = "source \"$0\"; COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1))
                    _highwater \"$1\" \"${@: -1}\" \"${@: -2:1}\"; echo \"${COMPREPLY[@]}\"";
        let mut bash = std::process::Command::new("bash");
        let bash = bash.args(["--norc", "-c", line]).arg(script).args(words).output();
        match bash {
            Err(error) => skip_or_fail(format_args!("bash: {error}")),
            Ok(output) => {
                let errors = String::from_utf8_lossy(&output.stderr);
                assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), expected, "{errors}");
            }
        }
    }

    #[test]
    fn bash_completes_values() {
        assert_completes(&["highwater", "run", "--faults", "h"], "handlers");
        assert_completes(&["highwater", "run", "--malloc", ""], "all large");
    }

    #[test]
    fn bash_completes_commands_and_options() {
        assert_completes(&["highwater", "do"], "doctor");
        assert_completes(&["highwater", "run", "--pag"], "--paged");
        assert_completes(&["highwater", "ls", "--j"], "--json");
    }
}

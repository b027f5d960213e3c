//! Random files of settings and variables: each is refused in one line, or gives arguments that the
//! command line accepts.

use super::{Environment, arguments};
use clap::CommandFactory;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

const KEYS: [&str; 16] = [
    "memory",
    "paged",
    "memory-per-process",
    "swap",
    "kswapd",
    "faults",
    "system-calls",
    "seal",
    "name",
    "report",
    "metrics",
    "quiet",
    "map-files",
    "config",
    "help",
    "memry",
];
const VALUES: [&str; 20] = [
    "'8M'",
    "'64M'",
    "'0'",
    "'-1M'",
    "'much'",
    "8",
    "-8",
    "1.5",
    "true",
    "false",
    "'true'",
    "''",
    "[]",
    "['ram:16M', 'zram:32M']",
    "['tape:1G']",
    "[[1]]",
    "{}",
    "1979-05-27",
    "'a\\nb'",
    "'ram:16M,priority=3'",
];

/// Checks the arguments, or the refusal, for this file and these variables.
fn check(file: &str, environment: Environment) {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("run.toml");
    std::fs::write(&path, file).expect("written");
    let mut cli = crate::Cli::command();
    cli.build();
    let run = cli.find_subcommand("run").expect("a subcommand").clone();
    let config = format!("--config={}", path.display());
    let given = run.clone().try_get_matches_from(["run", &config, "--", "true"]).expect("right");
    let described = format!("{file:?} {environment:?}");
    match arguments(&run, &given, environment) {
        Ok(added) => {
            let all = ["run".into()].into_iter().chain(added).chain(["--".into(), "true".into()]);
            let parsed = run.try_get_matches_from(all);
            // Two settings may exclude each other: parsing the command line then fails.
            let kind = parsed.err().map(|error| error.kind());
            let excluded = Some(clap::error::ErrorKind::ArgumentConflict);
            assert!(kind.is_none() || kind == excluded, "{described}: {kind:?}");
        }
        Err(refusal) => {
            let line = refusal.to_string();
            assert!(!line.is_empty() && !line.contains('\n'), "{described}: {line:?}");
        }
    }
}

proptest! {
    // A failure prints file and variables, from which a test of config.rs is made.
    #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

    #[test]
    fn settings_of_any_value_are_used_or_refused_in_a_line(
        lines in vec((select(&KEYS[..]), select(&VALUES[..])), 0..4),
    ) {
        let file: Vec<_> = lines.iter().map(|(key, value)| format!("{key} = {value}\n")).collect();
        check(&file.concat(), Environment::new());
    }

    #[test]
    fn files_of_any_text_are_refused_in_a_line(text in any::<String>()) {
        check(&text, Environment::new());
    }

    #[test]
    fn variables_of_any_value_are_used_or_refused_in_a_line(
        key in select(&KEYS[..]),
        value in prop_oneof![any::<String>(), select(&VALUES[..]).prop_map(str::to_owned)],
    ) {
        let variable = super::variable_of(key).into();
        check("", [(variable, value.into())].into());
    }
}

//! Of all commands together.
#![allow(clippy::unwrap_used)]
use std::any::TypeId;

use clap::{Arg, CommandFactory as _};

use super::*;

#[test]
fn the_command_line_is_well_formed() {
    Cli::command().debug_assert();
}

#[test]
fn every_command_says_what_it_is_for() {
    fn check(command: &clap::Command, path: &str) {
        let path = format!("{path} {}", command.get_name());
        assert!(command.get_about().is_some(), "{path}");
        for argument in command.get_arguments() {
            assert!(
                argument.get_help().is_some(),
                "{path}: {}",
                argument.get_id()
            );
        }
        command
            .get_subcommands()
            .for_each(|inner| check(inner, &path));
    }
    check(&Cli::command(), "");
}

#[test]
fn global_flags_go_before_and_after() {
    for words in [
        "nowserving --json --nats nats://h:1 info shop",
        "nowserving info shop --json --nats nats://h:1",
        "nowserving info --nats nats://h:1 shop --json",
    ] {
        let cli = Cli::try_parse_from(words.split(' ')).unwrap();
        assert!(cli.global.json, "{words}");
        assert_eq!(cli.global.nats.as_deref(), Some("nats://h:1"), "{words}");
    }
}

#[test]
fn enter_takes_a_key_or_anonymous() {
    for words in [
        "nowserving enter shop --key k",
        "nowserving enter shop --anonymous --lane vip",
    ] {
        assert!(Cli::try_parse_from(words.split(' ')).is_ok(), "{words}");
    }
}

#[test]
fn wrong_usage_is_exit_code_2() {
    for words in [
        "nowserving",
        "nowserving nonsense",
        "nowserving enter",
        "nowserving enter shop",
        "nowserving enter shop --key k --anonymous",
        "nowserving renew shop T",
        "nowserving renew shop T --epoch -1",
        "nowserving info shop --timeout 0s",
        "nowserving info shop --timeout 500",
        "nowserving line",
        "nowserving line create shop",
        "nowserving line create shop --seats many --queue-limit 1",
        "nowserving line create shop --seats 0 --queue-limit 1",
        "nowserving line set shop --claim-timeout 120000",
        "nowserving line set shop --claim-timeout 99ms",
        "nowserving line set shop --admission-rate 20/0",
        "nowserving line set shop --unset nonsense",
        "nowserving line set shop --seats 5 --unset seats",
        "nowserving status shop T --consistency sometimes",
        "nowserving status shop --key k --pass",
        "nowserving pass verify",
        "nowserving pass verify a.b.c --jwks f --line a/b",
        "nowserving kv put visits k",
        "nowserving kv put visits k v --ttl 0s",
        "nowserving kv list visits --limit 1001",
        "nowserving kv put visits k v --if-revision 9007199254740992",
        "nowserving kv delete visits k --if-revision 9007199254740992",
        "nowserving line create shop --seats 1 --queue-limit 10000001",
        "nowserving line set shop --position-cap 0",
        "nowserving line set shop --position-events 3,0",
        "nowserving line set shop --quota 0",
        "nowserving line set shop --quota 5 --standby-percent 1001",
        "nowserving line set shop --lane a:limit=10000001",
        "nowserving line set shop --lane a:boost=8d",
        "nowserving line set shop --seats 1 --if-version 9007199254740992",
        "nowserving line pause shop --if-version 9007199254740992",
        "nowserving line capacity shop --seats 1000001 --for 10s",
        "nowserving line capacity shop --seats 1 --for 8d",
        "nowserving line journal shop --after 9007199254740992",
        "nowserving line move shop --token x --to vip",
        "nowserving renew shop T --epoch 9007199254740992",
        "nowserving cluster remove-node 0",
    ] {
        let error = Cli::try_parse_from(words.split(' ')).unwrap_err();
        assert_eq!(error.exit_code(), 2, "{words}");
    }
    let neither = Cli::try_parse_from(["nowserving", "enter", "shop"]).unwrap_err();
    let said = neither.to_string();
    assert!(said.contains("--key <KEY>|--anonymous"), "{said}");
}

#[test]
fn every_option_with_a_number_refuses_a_negative_one_with_its_range() {
    let ids = [
        TypeId::of::<u8>(),
        TypeId::of::<u16>(),
        TypeId::of::<u32>(),
        TypeId::of::<u64>(),
    ];
    let is_number = |arg: &Arg| {
        let value = arg.get_value_parser().type_id();
        arg.get_action().takes_values() && ids.iter().any(|id| value == *id)
    };
    let mut seen = 0;
    let mut left = vec![(vec!["nowserving".to_owned()], Cli::command())];
    while let Some((words, command)) = left.pop() {
        for inner in command.get_subcommands() {
            let words = [&words[..], &[inner.get_name().to_owned()]].concat();
            left.push((words, inner.clone()));
        }
        for arg in command.get_arguments().filter(|arg| is_number(arg)) {
            let option = arg.get_long().map(|long| format!("--{long}"));
            let option: Vec<String> = option.into_iter().collect();
            let words = [&words[..], &option, &["-1".to_owned()]].concat();
            let error = Cli::try_parse_from(&words).unwrap_err().to_string();
            let named = error.contains("invalid value '-1' for '");
            // Durations and times have examples instead.
            let range = ["must be ", "such as ", "is not a time "];
            let has_range = range.iter().any(|words| error.contains(words));
            assert!(named && has_range, "{words:?}: {error}");
            seen += 1;
        }
    }
    assert!(seen > 30, "{seen}");
}

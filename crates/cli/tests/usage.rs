//! Error messages for wrong usage.

use std::process::{Command, Output};

/// With the settings that a user keeps in the environment.
fn run(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_nowserving"))
        .args(words)
        .env("NOWSERVING_NATS", "nats://127.0.0.1:1")
        .output()
        .expect("it starts")
}

#[test]
fn without_a_subcommand_it_prints_its_help() {
    for (words, usage) in [
        (&[][..], "Usage: nowserving"),
        (&["line"][..], "Usage: nowserving line"),
    ] {
        let output = run(words);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.contains(usage), "{text}");
        assert!(!text.contains("leash"), "{text}");
        assert!(output.stdout.is_empty());
    }
    let output = run(&["line", "--json"]);
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("a subcommand is required"), "{text}");
}

#[test]
fn the_usage_does_not_want_what_the_environment_sets() {
    for words in [&["kv", "put", "visits"][..], &["limit", "check", "shop"]] {
        let output = run(words);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{text}");
        let usage = format!("Usage: nowserving {} {} [OPTIONS]", words[0], words[1]);
        assert!(text.contains(&usage), "{text}");
        assert!(!text.contains("--nats"), "{text}");
    }
}

#[test]
fn a_number_out_of_its_range_is_named_with_its_range() {
    for (words, says) in [
        (
            &["line", "set", "shop", "--seats", "-1"][..],
            "'-1' for '--seats <N>': must be 1 to 1000000",
        ),
        (
            &["kv", "list", "visits", "--limit", "-5"],
            "'-5' for '--limit <N>': must be 1 to 1000",
        ),
        (
            &["cluster", "remove-node", "-1"],
            "'-1' for '<NODE>': must be 1 to 65535",
        ),
        (
            &["line", "move", "shop", "--token", "3", "--to", "vip"],
            "--token: LANE:NUMBER",
        ),
        (
            &[
                "line", "move", "shop", "--lane", "a", "--token", "b:3", "--to", "c",
            ],
            "--lane a and --token b:3 name two lanes",
        ),
        (
            &["line", "journal", "shop", "--lane", "a", "--token", "b:3"],
            "--lane a and --token b:3 name two lanes",
        ),
    ] {
        let output = run(words);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.contains(says), "{text}");
    }
}

#[test]
fn connecting_takes_no_longer_than_the_timeout() {
    // It listens, and never says a word.
    let silent = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    let url = format!("nats://{}", silent.local_addr().expect("an address"));
    let output = run(&["info", "shop", "--nats", &url, "--timeout", "200ms"]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{text}");
    assert!(text.contains("no connection within 200ms"), "{text}");
}

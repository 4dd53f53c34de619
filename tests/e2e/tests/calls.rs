//! A dispatcher admits tokens by the command: the next ones, and one out of order.

use anyhow::{Context, Result, ensure};
use nowserving_e2e::Cli;
use serde_json::Value;

use crate::command_line::{done, refused};

/// The keys that the answer lists.
fn admitted(answer: &Value) -> Result<Vec<&str>> {
    let tokens = answer["admitted"].as_array().context("admitted")?;
    let keys = tokens.iter().map(|token| token["key"].as_str());
    keys.collect::<Option<_>>().context("keys")
}

/// By the command line tool.
pub async fn by_command(cli: &Cli) -> Result<()> {
    let line = "called-command";
    let words = format!("line create {line} --seats 5 --queue-limit 9 --admission called");
    let made = done(cli, &words).await?;
    ensure!(made["settings"]["admission"] == "called", "{made}");
    for key in ["ann", "bob", "cat"] {
        done(cli, &format!("enter {line} --key {key}")).await?;
    }
    let words = format!("line call-next {line} --call-id monday-1");
    let called = done(cli, &words).await?;
    ensure!(admitted(&called)? == ["ann"], "{called}");
    ensure!(done(cli, &words).await? == called, "the same call");
    let taken = done(cli, &format!("line take {line} --token normal:3")).await?;
    ensure!(admitted(&taken)? == ["cat"], "{taken}");
    let rest = done(cli, &format!("line call-next {line} --n 9 --lane normal")).await?;
    ensure!(admitted(&rest)? == ["bob"], "{rest}");
    let none = format!("line take {line} --key nobody");
    refused(cli, &none, "token_not_found").await?;
    for wrong in ["", " --key a --token normal:1"] {
        let words = format!("line take {line}{wrong}");
        let words: Vec<&str> = words.split(' ').collect();
        cli.run(&words).await?.failed(2, "bad_request")?;
    }
    let shown = done(cli, &format!("line set {line} --unset admission")).await?;
    ensure!(shown["settings"]["admission"] == "auto", "{shown}");
    Ok(())
}

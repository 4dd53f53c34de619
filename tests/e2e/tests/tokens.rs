//! The tokens of a line are listed by the command.

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use nowserving_e2e::{Api, Cli};
use serde_json::json;

use crate::command_line::{done, refused};

/// A full page of the longest keys fits a message, and the command goes from page to page.
pub async fn by_command(api: &Api, cli: &Cli) -> Result<()> {
    let line = "list-command";
    let settings = json!({"seats": 1, "queue_limit": 5_000});
    api.admin(line, "create", settings).await?;
    // Written to a message, each byte takes six.
    let key = |nth| format!("{nth:04}{}", "\u{1}".repeat(124));
    let keys: Vec<String> = (0..1_200).map(key).collect();
    for some in keys.chunks(100) {
        let entered = some.iter().map(|key| api.enter(line, key));
        try_join_all(entered).await?;
    }
    let most = api
        .admin(line, "list_tokens", json!({"limit": 1000}))
        .await?;
    let on_page = most["tokens"].as_array().context("tokens")?.len();
    ensure!((40..100).contains(&on_page), "{on_page} on a page");
    ensure!(!most["next"].is_null());

    let all = done(cli, &format!("line tokens {line} --limit 5000")).await?;
    let tokens = all["tokens"].as_array().context("tokens")?;
    let numbers: Vec<Option<u64>> = tokens.iter().map(|it| it["token"].as_u64()).collect();
    ensure!(numbers == (1..=1_200).map(Some).collect::<Vec<_>>());
    ensure!(all["next"].is_null());
    let words =
        format!("line tokens {line} --state waiting --order service --lane normal --limit 2");
    let two = done(cli, &words).await?;
    ensure!(
        two["tokens"][1]["turn"] == 2 && !two["next"].is_null(),
        "{two}"
    );
    let admitted = done(cli, &format!("line tokens {line} --state admitted")).await?;
    ensure!(admitted["tokens"][0]["token"] == 1, "{admitted}");
    ensure!(admitted["next"].is_null(), "{admitted}");
    let wrong = format!("line tokens {line} --state admitted --order service");
    refused(cli, &wrong, "bad_request").await?;
    Ok(())
}

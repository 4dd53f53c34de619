//! Operators' requests that reach many tokens or many lines.

use anyhow::Result;
use nowserving_e2e::{Cli, Format, Options, Route, Scenarios, run};

use crate::{calls, kick, many_lines};

/// An operator changes the settings of all lines with a label.
#[tokio::test]
async fn lines_are_configured_by_label() -> Result<()> {
    run(Options::default(), async |cluster| {
        let json = cluster.api().by(Format::Json, Route::Plain);
        let msgpack = cluster.api().by(Format::MsgPack, Route::Plain);
        let cli = Cli::new(cluster.nats.url());
        Scenarios::default()
            .with(
                "many_json",
                many_lines::by_request(json.clone(), "kaohsiung"),
            )
            .with("many_msgpack", many_lines::by_request(msgpack, "tainan"))
            .with("many_command", many_lines::by_command(json, cli, "taipei"))
            .run()
            .await
    })
    .await
}

/// An operator ends tokens, by raw requests and by the command.
#[tokio::test]
async fn tokens_are_kicked() -> Result<()> {
    run(Options::default(), async |cluster| {
        let shards = cluster.options().shards;
        let json = cluster.api().by(Format::Json, Route::Plain);
        let msgpack = cluster.api().by(Format::MsgPack, Route::Shard(shards));
        let cli = Cli::new(cluster.nats.url());
        Scenarios::default()
            .with("kick_json", kick::every_selector(json.clone(), "kick-json"))
            .with(
                "kick_msgpack",
                kick::every_selector(msgpack, "kick-msgpack"),
            )
            .with("kick_command", kick::by_command(json, cli, "kick-command"))
            .run()
            .await
    })
    .await
}

/// A dispatcher calls tokens, by raw requests and by the command.
#[tokio::test]
async fn tokens_are_called() -> Result<()> {
    run(Options::default(), async |cluster| {
        let shards = cluster.options().shards;
        let json = cluster.api().by(Format::Json, Route::Plain);
        let msgpack = cluster.api().by(Format::MsgPack, Route::Shard(shards));
        let cli = Cli::new(cluster.nats.url());
        Scenarios::default()
            .with("call_json", calls::next_ones(json.clone(), "call-json"))
            .with(
                "call_msgpack",
                calls::next_ones(msgpack.clone(), "call-msgpack"),
            )
            .with(
                "take_json",
                calls::one_out_of_order(cluster, json, "take-json"),
            )
            .with(
                "take_msgpack",
                calls::one_out_of_order(cluster, msgpack, "take-msgpack"),
            )
            .with("call_command", calls::by_command(cli))
            .run()
            .await
    })
    .await
}

//! The commands of the tool, each in a cluster.

use anyhow::Result;
use nowserving_e2e::{Cli, Options, Scenarios, run};

use crate::{
    command_line, demo_command, doctor_command, examples, operators_commands, readme,
    readme_places, sdk, signals, top_command, watch_command,
};

/// The command line tool, command by command; and the SDK, by way of the tool, over a crash.
#[tokio::test]
async fn the_command_line_speaks_json() -> Result<()> {
    run(Options::default(), async |cluster| {
        let url = cluster.nats.url();
        let cli = Cli::new(url.clone());
        let api = cluster.api().clone();
        Scenarios::default()
            .with("cli_operators", command_line::operators(&cli))
            .with("cli_users", command_line::users(&cli))
            .with("cli_phases", operators_commands::phases(&cli))
            .with("cli_calls", operators_commands::calls(&cli))
            .with("cli_contexts", operators_commands::contexts(&url))
            .with("cli_papers", operators_commands::papers(&cli))
            .with("cli_watch", command_line::watch(&cli))
            .with("cli_errors", command_line::errors(&cli))
            .with(
                "cli_doctor",
                doctor_command::lines(api.clone(), cli.clone()),
            )
            .with("cli_no_cluster", doctor_command::nothing_answers())
            .run()
            .await?;
        sdk::over_a_crash_of_the_leader(cluster, &cli).await?;
        doctor_command::a_node_is_down(cluster, &cli).await
    })
    .await
}

/// `nowserving demo` and `nowserving demo --limits`: their last lines. Each plays for a minute.
#[tokio::test]
async fn the_demos_keep_their_promises() -> Result<()> {
    tokio::try_join!(demo_command::a_small_crowd(), demo_command::rate_limits()).map(drop)
}

/// The programs in `examples/` in Python and JavaScript, unchanged.
#[tokio::test]
async fn examples_of_the_readme_run() -> Result<()> {
    run(Options::default(), async |cluster| {
        readme::examples(cluster).await?;
        let api = cluster.api().clone();
        api.admin(readme::LINE, "delete", serde_json::json!({}))
            .await?;
        readme_places::are_those_of_a_recount(cluster).await
    })
    .await
}

/// The programs in `examples/`.
#[tokio::test]
async fn examples_tell_their_stories() -> Result<()> {
    run(Options::default(), examples::tell_their_stories).await
}

/// `nowserving watch` while nodes stand still.
#[tokio::test]
async fn a_watch_says_why_it_is_outdated() -> Result<()> {
    run(Options::default(), watch_command::says_why_it_is_old).await
}

/// `nowserving top`, on a terminal and without, and `watch --csv`.
#[tokio::test]
async fn top_shows_the_cluster() -> Result<()> {
    run(Options::default(), top_command::shows_the_cluster).await
}

/// SIGHUP stops no daemon; SIGINT stops each one.
#[tokio::test]
async fn daemons_read_files_again_on_a_hang_up() -> Result<()> {
    let options = Options {
        nodes: 1,
        shards: 4,
        ..Options::default()
    };
    run(options, async |cluster| {
        signals::of_envoys_service(cluster).await?;
        signals::of_a_node(cluster).await
    })
    .await
}

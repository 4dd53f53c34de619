//! Every test is a cluster; the scenarios are in the modules, by theme.

mod all_unreachable;
mod archive;
mod auto_seats;
mod backup;
mod bad_luck;
mod bad_subjects;
mod calls;
mod clocks;
mod command_line;
mod commands;
mod config;
mod contract;
mod crash;
mod damage;
mod dashboards;
mod demo_command;
mod described;
mod dev_command;
mod direct_links;
mod discovery;
mod doctor_command;
mod draws;
mod envoy;
mod events;
mod examples;
mod failed_syncs;
mod forecasts;
mod full_disks;
mod gates;
mod grown;
mod guarded;
mod harness;
mod hostile;
mod import;
mod kick;
mod kv;
mod late_writes;
mod leaks;
mod left_behind;
mod limited_service;
mod limits;
mod loops;
mod many_lines;
mod mapping;
mod members;
mod metrics;
mod moved_limits;
mod operate;
mod operations;
mod operators;
mod operators_commands;
mod operators_hour;
mod passes;
mod polls;
mod push;
mod rate_limits;
mod readme;
mod readme_places;
mod recycle;
mod request_info;
mod rights;
mod roles;
mod rotate_key;
mod rules;
mod schedule;
mod sdk;
mod secured;
mod signals;
mod small_messages;
mod snapshots;
mod soaks;
mod strangers;
mod tokens;
mod told;
mod top_command;
mod traces;
mod units;
mod unreachable_leader;
mod watch_command;

use anyhow::Result;
use nowserving_e2e::{
    Cli, Format, Options, Route, Scenarios, SmallDisk, run, skipped, strace_works,
};

/// Without nodes: look here first when every test fails.
#[tokio::test]
async fn the_harness_holds() -> Result<()> {
    harness::mapping_and_hash_agree().await?;
    harness::links_can_be_cut().await
}

/// Each operation once, in one cluster, concurrently; what it does in each case is proved by tests of the crates.
#[tokio::test]
async fn a_cluster_serves_lines() -> Result<()> {
    run(Options::default(), async |cluster| {
        let cluster = &*cluster;
        let cli = &Cli::new(cluster.nats.url());
        let json = cluster.api().by(Format::Json, Route::Plain);
        let msgpack = cluster
            .api()
            .by(Format::MsgPack, Route::Shard(cluster.options().shards));
        Scenarios::default()
            .with(
                "operations_json",
                operations::every_operation(json.clone(), "op-json"),
            )
            .with(
                "operations_msgpack",
                operations::every_operation(msgpack.clone(), "op-msgpack"),
            )
            .with(
                "operators_json",
                operators::every_operation(json.clone(), "admin-json"),
            )
            .with(
                "operators_msgpack",
                operators::every_operation(msgpack, "admin-msgpack"),
            )
            .with("operators_pages", operators::pages(json.clone()))
            .with("events_tokens", events::tokens(cluster))
            .with("recycle_seats", recycle::seats_come_free(cluster))
            .with("told_room", told::room(cluster))
            .with("told_capacity", told::capacity(cluster))
            .with("import", import::by_command(cluster))
            .with("schedule_opens", schedule::a_sale_opens_by_itself(cluster))
            .with("discovery", discovery::nats_services(cluster))
            .with("archive", archive::keeps_what_happened(cluster))
            .with("rules", rules::by_command(cli))
            .with("rules_watched", rules::watched_move(cli))
            .with("calls", calls::by_command(cli))
            .with("forecasts", forecasts::by_guess(&json, cli))
            .with("units", units::of_a_quota(&json, cli))
            .with("draws", draws::by_command(&json, cli))
            .with("kick", kick::by_command(&json, cli))
            .with("tokens", tokens::by_command(&json, cli))
            .with("many_lines", many_lines::by_command(&json, cli))
            .run()
            .await
    })
    .await
}

/// What a line knows, while leaders die; and by way of snapshots, as few entries make one.
#[tokio::test]
async fn the_rules_of_a_line_survive_crashes() -> Result<()> {
    let options = Options {
        shards: 1,
        snapshot_entries: 100,
        ..Options::default()
    };
    run(options, rules::over_crashes).await
}

/// kill -9 of the leader in the midst of one.
#[tokio::test]
async fn a_draw_survives_a_crash() -> Result<()> {
    let options = Options {
        shards: 1,
        ..Options::default()
    };
    run(options, draws::over_a_crash).await
}

/// What passes is checked against docs/asyncapi.yaml, and the check can fail.
#[tokio::test]
async fn all_that_passes_is_described() -> Result<()> {
    run(Options::default(), described::all_messages_are_seen).await
}

/// All lines in a file, and back.
#[tokio::test]
async fn a_backup_comes_back() -> Result<()> {
    let options = Options {
        shards: 4,
        ..Options::default()
    };
    run(options, backup::comes_back).await
}

/// A restore is killed and repeated, and its leaders die.
#[tokio::test]
async fn a_restore_can_be_broken_off() -> Result<()> {
    let options = Options {
        shards: 4,
        ..Options::default()
    };
    run(options, backup::broken_off).await
}

/// A short form of `cargo xtask guard`: never more handlers than seats, through the loss of a process and of the leader.
#[tokio::test]
async fn guarded_handlers_run_within_their_seats() -> Result<()> {
    guarded::however_they_end().await
}

/// With the guard's default options no caller is let through while a leader is lost.
#[tokio::test]
async fn a_guard_stays_closed_through_a_change_of_leader() -> Result<()> {
    guarded::through_a_change_of_leader().await
}

/// An axum service behind the layer, by HTTP.
#[tokio::test]
async fn a_guarded_service_speaks_http() -> Result<()> {
    run(Options::default(), guarded::by_http).await
}

/// The seats of a guarded line follow a service that slows down by its load.
#[tokio::test]
async fn seats_follow_a_service() -> Result<()> {
    run(Options::default(), auto_seats::follow_the_service).await
}

/// Rate limits, by raw requests and by the command, and over a crash.
#[tokio::test]
async fn requests_are_limited() -> Result<()> {
    run(Options::default(), rate_limits::everything).await
}

/// A short form of `cargo xtask limits`: many processes share limits; then the leader that counts is killed.
#[tokio::test]
async fn limits_hold_over_many_processes_and_a_crash() -> Result<()> {
    rate_limits::over_many_processes().await
}

/// Hits count once, by the SDK and by hand, while leadership is handed over.
#[tokio::test]
async fn a_check_counts_once_while_leadership_moves() -> Result<()> {
    run(Options::default(), moved_limits::count_once).await
}

/// An axum service behind rate limits, by HTTP.
#[tokio::test]
async fn a_limited_service_speaks_http() -> Result<()> {
    run(Options::default(), limited_service::by_http).await
}

/// Passes are checked by libraries of other makes, by the command, and by a checker that follows events.
#[tokio::test]
async fn passes_are_signed_and_checked() -> Result<()> {
    run(Options::default(), passes::signed_and_checked).await
}

/// Envoy's rate limit service, asked by a client of another make.
#[tokio::test]
async fn envoy_is_answered() -> Result<()> {
    run(Options::default(), envoy::asks).await
}

/// nginx, Traefik, Caddy, Envoy and HAProxy before a shop, by the configurations of deploy/gates. For `cargo xtask ci --front`
/// in all cases.
#[tokio::test]
async fn gates_keep_out_and_let_in() -> Result<()> {
    match gates::in_all_cases() {
        true => gates::every_case().await,
        false => run(Options::default(), gates::each_once).await,
    }
}

/// Clients that mean harm: a gateway asked directly, and by nginx and HAProxy (`cargo xtask ci --front`: by all proxies).
#[tokio::test]
async fn hostile_clients_harm_nobody() -> Result<()> {
    run(Options::default(), hostile::everything).await
}

/// The rights of deploy/nats are those of docs/security.md, sufficient for each role, and deny everything else.
#[tokio::test]
async fn rights_as_they_are_shipped() -> Result<()> {
    roles::are_those_of_the_table()?;
    roles::follow_the_operations()?;
    roles::do_just_what_they_should().await?;
    let options = Options {
        // It is in the configuration.
        mapping: false,
        authorization: Some(roles::as_shipped(None)?),
        ..Options::default()
    };
    run(options, rights::hold).await
}

/// A push service that may only subscribe knows every place, after a failover too.
#[tokio::test]
async fn a_push_service_knows_every_place_from_events() -> Result<()> {
    let options = Options {
        mapping: false,
        authorization: Some(roles::as_shipped(None)?),
        ..Options::default()
    };
    run(options, push::knows_every_place).await
}

/// These requests may break connections, so no other scenario shares the cluster.
#[tokio::test]
async fn bad_subjects_and_frames_are_survived() -> Result<()> {
    run(Options::default(), async |cluster| {
        limits::payloads(cluster).await?;
        bad_subjects::foreign_replies(cluster).await?;
        bad_subjects::frames(cluster).await?;
        bad_subjects::not_utf8(cluster).await
    })
    .await
}

/// Alone in its cluster, so that every write and frame is due to the polls.
#[tokio::test]
async fn a_poll_costs_no_disk_and_no_peer() -> Result<()> {
    run(Options::default(), polls::cost_nothing).await
}

/// The dashboards and alert rules, with a Prometheus that scrapes the nodes.
#[tokio::test]
async fn dashboards_and_rules_show_data() -> Result<()> {
    let Some(prometheus) = dashboards::prometheus() else {
        return skipped("dashboards_and_rules", "PROMETHEUS names no Prometheus");
    };
    let options = Options {
        shards: 4,
        snapshot_entries: 100,
        ..Options::default()
    };
    run(options, async |cluster| {
        dashboards::return_data(cluster, &prometheus).await
    })
    .await
}

/// Crashes would disturb other scenarios in the cluster.
#[tokio::test]
async fn crashes_lose_and_double_nothing() -> Result<()> {
    run(Options::default(), async |cluster| {
        crash::of_a_leader_under_load(cluster).await?;
        crash::of_all_nodes(cluster).await
    })
    .await
}

/// Alone in its cluster, which dies as a whole and stays dead for a while.
#[tokio::test]
async fn shown_times_are_of_the_wall_clock() -> Result<()> {
    let options = Options {
        shards: 1,
        ..Options::default()
    };
    run(options, clocks::show_the_wall_clock).await
}

/// With snapshots every hundred entries: the log is compacted, but not past what a dead member has, and
/// no acknowledged write is lost.
#[tokio::test]
async fn snapshots_let_the_log_be_cut() -> Result<()> {
    let options = Options {
        shards: 2,
        snapshot_entries: 100,
        ..Options::default()
    };
    run(options, snapshots::and_a_log_that_is_cut).await
}

/// A node is away for so long that the others drop what it lacks: it catches up by snapshots, under load.
#[tokio::test]
async fn a_node_left_behind_gets_snapshots() -> Result<()> {
    let options = Options {
        shards: 2,
        snapshot_entries: 100,
        log_bytes_max: 1 << 20,
        ..Options::default()
    };
    run(options, left_behind::catches_up_under_load).await
}

/// A bit flips in a file of a node that is down; and one whose snapshot has another content comes back.
#[tokio::test]
async fn damage_is_refused_and_another_state_is_found() -> Result<()> {
    let options = Options {
        shards: 1,
        snapshot_entries: damage::SNAPSHOT_ENTRIES,
        ..Options::default()
    };
    run(options, async |cluster| {
        damage::flipped_bits(cluster).await?;
        damage::another_state(cluster).await
    })
    .await
}

/// A node that gets SIGTERM hands over first, and one after the other is restarted so; a leader that was stopped gives no
/// outdated answers.
#[tokio::test]
async fn graceful_stops_and_a_pause() -> Result<()> {
    run(Options::default(), async |cluster| {
        crash::graceful_stop(cluster).await?;
        crash::rolling_restart(cluster).await?;
        crash::pause_longer_than_a_lease(cluster).await
    })
    .await
}

/// The remaining nodes listen, and answer requests that they cannot serve.
#[tokio::test]
async fn a_dead_leader_and_one_alone() -> Result<()> {
    run(Options::default(), async |cluster| {
        bad_luck::a_node_listens(cluster).await?;
        bad_luck::too_much_to_do(cluster).await
    })
    .await
}

/// With the mapping line, which leads past a stopped node.
#[tokio::test]
async fn a_failed_hand_over_leaves_no_shard_unserved() -> Result<()> {
    let options = Options {
        proxied: true,
        ..Options::default()
    };
    let scenario = unreachable_leader::a_hand_over_to_a_dead_node;
    run(options, scenario).await
}

/// Without the mapping line: plain requests are taken by any node.
#[tokio::test]
async fn an_unreachable_leader_recycles_no_token() -> Result<()> {
    let options = Options {
        mapping: false,
        proxied: true,
        ..Options::default()
    };
    run(options, async |cluster| {
        unreachable_leader::no_token_is_recycled(cluster).await?;
        all_unreachable::no_token_is_recycled(cluster).await?;
        unreachable_leader::any_node_answers(cluster).await?;
        unreachable_leader::without_a_quorum(cluster).await
    })
    .await
}

/// A stopped node costs clients on plain subjects nothing.
#[tokio::test]
async fn with_the_mapping_a_stopped_node_is_passed_by() -> Result<()> {
    run(Options::default(), mapping::past_a_stopped_node).await
}

/// Nodes report whether NATS has the mapping line, each time that it changes.
#[tokio::test]
async fn a_missing_mapping_is_reported() -> Result<()> {
    let options = Options {
        mapping: false,
        ..Options::default()
    };
    run(options, mapping::is_reported).await
}

/// Our own SDK does what the scenarios for all SDKs ask.
#[tokio::test]
async fn our_sdk_keeps_the_contract() -> Result<()> {
    run(Options::default(), contract::scenarios).await
}

/// `nowserving dev`: what it prints, what it survives, what it leaves behind.
#[tokio::test]
async fn dev_runs_a_cluster() -> Result<()> {
    dev_command::dev_runs_a_cluster().await
}

/// A node with a bad configuration reports it and does not start.
#[tokio::test]
async fn bad_configuration_is_refused() -> Result<()> {
    let options = Options {
        nodes: 1,
        shards: 4,
        ..Options::default()
    };
    run(options, async |cluster| {
        config::bad_flags_and_files(cluster).await?;
        config::key_files(cluster).await?;
        config::two_on_one_data_directory(cluster).await?;
        config::another_identity(cluster).await
    })
    .await
}

/// Refused nodes on the same NATS serve no requests.
#[tokio::test]
async fn a_node_outside_the_cluster_serves_no_requests() -> Result<()> {
    let options = Options {
        mapping: false,
        ..Options::default()
    };
    run(options, async |cluster| {
        strangers::wiped(cluster).await?;
        strangers::of_another_key(cluster).await?;
        strangers::of_another_cluster(cluster).await?;
        strangers::misconfigured(cluster).await?;
        strangers::back_as_itself(cluster).await?;
        config::impostor(cluster).await?;
        strangers::of_a_cluster_that_moved_here(cluster).await?;
        strangers::without_a_quorum(cluster).await
    })
    .await
}

/// The same from the cluster's first start on.
#[tokio::test]
async fn shard_counts_that_differ_at_birth_are_found() -> Result<()> {
    let options = Options {
        mapping: false,
        ..Options::default()
    };
    run(options, strangers::of_another_shard_count).await
}

/// The disk reports that a sync failed.
#[tokio::test]
async fn a_failed_sync_ends_the_node() -> Result<()> {
    if !strace_works().await {
        return skipped("a_failed_sync", "strace is missing, or may not trace");
    }
    run(Options::default(), failed_syncs::end_the_node).await
}

/// The disk of one node, then those of all nodes, are full for a while.
#[tokio::test]
async fn full_disks_are_waited_out() -> Result<()> {
    if !SmallDisk::is_available()? {
        return skipped("full_disks", "mounting a small tmpfs needs root");
    }
    let options = Options {
        shards: 3,
        disk_bytes: Some(full_disks::DISK_BYTES),
        ..Options::default()
    };
    run(options, async |cluster| {
        full_disks::of_one_node(cluster).await?;
        full_disks::of_all_nodes(cluster).await
    })
    .await
}

/// Nodes are drained, lead what they are asked to, and are removed.
#[tokio::test]
async fn members_are_drained_and_removed() -> Result<()> {
    let options = Options {
        shards: 4,
        ..Options::default()
    };
    run(options, members::drained_and_removed).await
}

/// The key is rotated under load; old tickets are good until the stated time.
#[tokio::test]
async fn the_key_is_rotated_without_a_failed_request() -> Result<()> {
    let options = Options {
        shards: 4,
        own_key_files: true,
        // A machine that stands still for seconds elects no other leader, which would answer requests of the first one
        // with `outcome_unknown`.
        election: Some("5s"),
        ..Options::default()
    };
    run(options, rotate_key::rotated_under_load).await
}

/// A cluster that was founded by one node survives that the founder loses its disk, and does so again.
#[tokio::test]
async fn a_founder_without_its_disk_founds_nothing() -> Result<()> {
    let options = Options {
        nodes: 1,
        shards: 2,
        ..Options::default()
    };
    run(options, grown::founder_without_its_disk).await
}

/// Three nodes become five and three others, and a wiped one comes back, while clients enter.
#[tokio::test]
async fn members_are_added_and_replaced_under_load() -> Result<()> {
    let options = Options {
        shards: 4,
        snapshot_entries: 500,
        ..Options::default()
    };
    run(options, members::added_and_replaced).await
}

/// Requests in a stopped follower; in the buffers of a connection that delivers nothing for a while; and in a follower
/// that gets them beside the leader. Without the mapping line nats-server gives each plain request to any one node.
#[tokio::test]
async fn what_was_held_back_writes_nothing_late() -> Result<()> {
    let options = Options {
        shards: 1,
        mapping: false,
        proxied: true,
        ..Options::default()
    };
    run(options, async |cluster| {
        late_writes::a_stopped_follower(cluster).await?;
        late_writes::hits_in_a_stopped_follower(cluster).await?;
        late_writes::a_stalled_leader(cluster).await?;
        late_writes::a_follower_beside_the_leader(cluster).await?;
        rate_limits::beside_a_node_that_is_cut_off(cluster).await
    })
    .await
}

//! Rate limits: what clients and operators are answered, by raw requests and by the command, and over a crash.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use nowserving_e2e::limited::{self, Plan};
use nowserving_e2e::{Api, Cli, Cluster, Format, Link, Options, Route, Scenarios, eventually};
use nowserving_line::LineName;
use nowserving_protocol::error::Code;
use nowserving_protocol::limits::{Entry, limit_shard_of};
use serde_json::{Value, json};

use crate::many_lines::known_everywhere;

/// As [`Options::default`] has it.
const SHARDS: u32 = 16;
const LONG: Duration = Duration::from_secs(60);
/// The deadline of requests that must not be repeated, as each copy counts: a slow machine answers by then.
const ANSWERED_MS: u64 = 20_000;

/// By the hour and the day, so that no window ends in a test but by rare chance, or by the service clock. A queue that
/// moves once a minute is not empty a moment later.
fn rules(domain: &str) -> String {
    format!(
        "domain: {domain}
descriptors:
  - key: ip
    rate_limit: {{unit: hour, requests_per_unit: 3, algorithm: sliding_window_log, name: by_ip}}
    descriptors:
      - {{key: path, value: /free*, rate_limit: {{unlimited: true}}}}
      - {{key: path, rate_limit: {{unit: hour, requests_per_unit: 2, algorithm: token_bucket, burst: 4}}}}
  - {{key: queue, rate_limit: {{unit: minute, requests_per_unit: 1, burst: 3, algorithm: leaking_bucket}}}}
  - {{key: account, rate_limit: {{unit: year, requests_per_unit: 2, algorithm: token_bucket, exact: true}}}}
  - {{key: shadow, shadow_mode: true, rate_limit: {{unit: year, requests_per_unit: 0}}}}
"
    )
}

async fn ok(api: &Api, domain: &str, body: Value) -> Result<Value> {
    api.check(domain, &body).await?.accepted(api.format())
}

fn of(key: &str, value: &str) -> Value {
    json!({"descriptors": [[{"key": key, "value": value}]]})
}

async fn apply(api: &Api, domain: &str) -> Result<()> {
    apply_text(api, domain, &rules(domain)).await
}

pub async fn apply_text(api: &Api, domain: &str, text: &str) -> Result<()> {
    let applied = api.limit("apply", json!({"rules": text})).await?;
    ensure!(applied["domain"] == domain, "{applied}");
    // Other nodes know it a moment later.
    eventually("all nodes know the rules", LONG, async || {
        let mut know = true;
        for _ in 0..12 {
            let asked = ok(
                api,
                domain,
                json!({"descriptors": [[{"key": "none"}]], "dry_run": true}),
            );
            know &= asked.await?.get("unmatched").is_none();
        }
        Ok(know.then_some(()))
    })
    .await
}

pub async fn everything(cluster: &mut Cluster) -> Result<()> {
    let shards = cluster.options().shards;
    let api = cluster.api().within(ANSWERED_MS);
    let json = api.by(Format::Json, Route::Plain);
    let msgpack = api.by(Format::MsgPack, Route::Shard(shards));
    let cli = Cli::new(cluster.nats.url());
    Scenarios::default()
        .with("limits_json", every_answer(json.clone(), "limits-json"))
        .with("limits_msgpack", every_answer(msgpack, "limits-msgpack"))
        .with("limits_together", together(json.clone()))
        .with("limits_all_or_none", all_or_none(json, shards))
        .with("limits_command", by_command(cli))
        .run()
        .await?;
    rules_are_watched(cluster).await?;
    over_a_crash(cluster).await?;
    come_back(cluster).await
}

async fn every_answer(api: Api, domain: &str) -> Result<()> {
    let unknown = ok(&api, domain, of("ip", "a")).await?;
    ensure!(
        unknown["allowed"] == true && unknown["unmatched"] == true,
        "{unknown}"
    );
    operators_apply(&api, domain).await?;
    apply(&api, domain).await?;
    for remaining in [2, 1, 0] {
        let passes = ok(&api, domain, of("ip", "a")).await?;
        ensure!(
            passes["allowed"] == true && passes["remaining"] == remaining && passes["limit"] == 3,
            "{passes}"
        );
    }
    let refused = ok(&api, domain, of("ip", "a")).await?;
    let retry_ms = refused["retry_after_ms"].as_u64().unwrap_or_default();
    ensure!(
        refused["allowed"] == false && (3_000_000..=3_600_000).contains(&retry_ms),
        "{refused}"
    );
    let descriptor = &refused["descriptors"][0];
    ensure!(
        descriptor["unit"] == "hour" && descriptor["name"] == "by_ip",
        "{refused}"
    );
    ensure!(ok(&api, domain, of("ip", "b")).await?["allowed"] == true);
    let unlimited = json!({"descriptors": [[{"key": "ip", "value": "a"}, {"key": "path", "value": "/free/1"}],
        [{"key": "nothing"}]]});
    let unlimited = ok(&api, domain, unlimited).await?;
    ensure!(
        unlimited["allowed"] == true
            && unlimited["limit"].is_null()
            && unlimited["descriptors"][0]["unlimited"] == true
            && unlimited["descriptors"][1]["unmatched"] == true,
        "{unlimited}"
    );
    of_the_leader(&api, domain).await?;
    several_hits(&api, domain).await?;
    exact(&api, domain).await?;
    operators_look(&api, domain).await?;
    errors(&api, domain).await?;
    let dry = json!({"domain": domain, "dry_run": true});
    let dry = api.limit("delete", dry).await?;
    ensure!(
        dry["dry_run"] == true && dry["version"].as_u64() > Some(0),
        "{dry}"
    );
    let noted = api.noted("ann", "the sale is over");
    let deleted = noted.limit("delete", json!({"domain": domain})).await?;
    ensure!(deleted["changes"] == dry["changes"], "{deleted} {dry}");
    ensure!(
        deleted["changes"]
            .as_array()
            .is_some_and(|it| it.len() == 6),
        "{deleted}"
    );
    api.limit_refused("delete", json!({"domain": domain}), Code::DomainNotFound)
        .await?;
    recorded(&api, domain, &deleted["version"]).await
}

/// Operators' changes are listed with the reason, also of rules that are gone.
async fn recorded(api: &Api, domain: &str, version: &Value) -> Result<()> {
    let listed = eventually("each shard answers", LONG, async || {
        let listed = api.limit("changes", json!({"domain": domain})).await?;
        Ok(listed.get("unanswered").is_none().then_some(listed))
    });
    let listed = listed.await?;
    let changes = listed["changes"].as_array().context("no changes")?;
    let ops: Vec<&str> = changes.iter().filter_map(|it| it["op"].as_str()).collect();
    ensure!(ops.first() == Some(&"apply"), "{listed}");
    let reset = changes.iter().find(|it| it["op"] == "reset");
    let reset = reset.context("no reset")?;
    ensure!(reset["descriptor"] == "ip=a", "{reset}");
    let newest = changes.last().context("no changes")?;
    let said = (&newest["op"], &newest["by"], &newest["reason"]);
    let expected = (&json!("delete"), &json!("ann"), &json!("the sale is over"));
    ensure!(
        said == expected && newest["version"] == *version,
        "{newest}"
    );
    let others = api.limit("changes", json!({"domain": "none"})).await?;
    ensure!(others["changes"] == json!([]), "{others}");
    Ok(())
}

/// On the subject of the leader that counts for the descriptor, and on that of another one.
async fn of_the_leader(api: &Api, domain: &str) -> Result<()> {
    let descriptor = [Entry::new("ip", "leader")];
    let shard = limit_shard_of(&LineName::try_from(domain)?, &descriptor, SHARDS);
    let mut remaining = 3;
    for shard in [shard, shard, (shard + 1) % SHARDS] {
        let subject = format!("nowserving.leader.{shard}.limit.{domain}.check");
        let body = of("ip", "leader");
        let passes = api.ask_at(&subject, &body).await?.accepted(api.format())?;
        remaining -= 1;
        ensure!(
            passes["allowed"] == true && passes["remaining"] == remaining,
            "{shard}: {passes}"
        );
    }
    let subject = format!("nowserving.leader.{shard}.limit.{domain}.enter");
    let refused = api.ask_at(&subject, &of("ip", "leader")).await?;
    refused.refused(api.format(), Code::BadRequest)?;
    Ok(())
}

async fn operators_apply(api: &Api, domain: &str) -> Result<()> {
    let text = rules(domain);
    let dry = json!({"rules": text, "dry_run": true});
    let dry = api.limit("apply", dry).await?;
    let changes = dry["changes"].as_array().map(Vec::len);
    ensure!(
        dry["version"] == 0 && dry["dry_run"] == true && changes == Some(6),
        "{dry}"
    );
    let conflict = json!({"rules": text, "if_version": 77});
    api.limit_refused("apply", conflict, Code::VersionConflict)
        .await?;
    for (rules, says) in [
        ("domain: a.b", "domain"),
        ("domain: [", "not YAML"),
        (
            "domain: x\ndescriptors:\n  - {key: a, rate_limit: {unit: day}}",
            "line 3, column",
        ),
        ("", "exactly one"),
    ] {
        let error = api
            .limit_refused("apply", json!({"rules": rules}), Code::BadRequest)
            .await?;
        let message = error["message"].as_str().unwrap_or_default();
        ensure!(
            message.starts_with("rules: ") && message.contains(says),
            "{error}"
        );
    }
    Ok(())
}

async fn several_hits(api: &Api, domain: &str) -> Result<()> {
    let hits = |hits: u32, dry_run: bool| {
        json!({"descriptors": [[{"key": "ip", "value": "c"}, {"key": "path", "value": "/x"}]],
            "hits": hits, "dry_run": dry_run})
    };
    for _ in 0..3 {
        let dry = ok(api, domain, hits(4, true)).await?;
        ensure!(dry["allowed"] == true && dry["remaining"] == 4, "{dry}");
    }
    ensure!(ok(api, domain, hits(3, false)).await?["remaining"] == 1);
    let refused = ok(api, domain, hits(2, false)).await?;
    ensure!(
        refused["allowed"] == false && refused["remaining"] == 1,
        "{refused}"
    );
    let never = ok(api, domain, hits(5, false)).await?;
    ensure!(
        never["allowed"] == false && never["retry_after_ms"].is_null(),
        "{never}"
    );
    let second = ok(
        api,
        domain,
        json!({"descriptors": [[{"key": "queue", "value": "q"}]], "hits": 2}),
    );
    ensure!(
        second.await?.get("delay_ms").is_none(),
        "the first leaves at once"
    );
    let waits = ok(api, domain, of("queue", "q")).await?;
    ensure!(waits["delay_ms"].as_u64() > Some(0), "{waits}");
    let hasty = json!({"descriptors": [[{"key": "queue", "value": "q"}]], "max_delay_ms": 0});
    let refused = ok(api, domain, hasty).await?;
    ensure!(
        refused["allowed"] == false
            && refused["delay_ms"].as_u64() > Some(0)
            && refused["retry_after_ms"].as_u64() > Some(0),
        "{refused}"
    );
    let shadow = ok(api, domain, of("shadow", "s")).await?;
    ensure!(
        shadow["allowed"] == true && shadow["descriptors"][0]["allowed"] == false,
        "{shadow}"
    );
    Ok(())
}

async fn exact(api: &Api, domain: &str) -> Result<()> {
    let one = api.with_request_id(format!("{domain}-one"));
    for _ in 0..3 {
        let same = ok(&one, domain, of("account", "x")).await?;
        ensure!(same["allowed"] == true && same["remaining"] == 1, "{same}");
    }
    let dry = json!({"descriptors": [[{"key": "account", "value": "x"}]], "dry_run": true});
    ensure!(ok(api, domain, dry).await?["allowed"] == true);
    ensure!(ok(api, domain, of("account", "x")).await?["allowed"] == true);
    ensure!(ok(api, domain, of("account", "x")).await?["allowed"] == false);
    Ok(())
}

async fn operators_look(api: &Api, domain: &str) -> Result<()> {
    let tested = json!({"domain": domain, "descriptors": [[{"key": "ip", "value": "a"}]]});
    let tested = api.limit("test", tested).await?;
    let rule = tested["descriptors"][0]["rule"]
        .as_str()
        .unwrap_or_default();
    ensure!(
        tested["allowed"] == false && rule.starts_with(&format!("{domain} / ip: 3 per hour")),
        "{tested}"
    );
    let reset = json!({"domain": domain, "descriptor": [{"key": "ip", "value": "a"}]});
    api.limit("reset", reset).await?;
    ensure!(ok(api, domain, of("ip", "a")).await?["remaining"] == 2);
    let stats = eventually("each shard tells", LONG, async || {
        let stats = api.limit("stats", json!({})).await?;
        Ok(stats.get("unanswered").is_none().then_some(stats))
    });
    let stats = stats.await?;
    let shards = stats["shards"].as_array().cloned().unwrap_or_default();
    let sum = |field: &str| {
        shards
            .iter()
            .filter_map(|it| it[field].as_u64())
            .sum::<u64>()
    };
    ensure!(
        sum("counters") >= 4 && sum("checks") >= 10 && sum("refused") >= 1,
        "{stats}"
    );
    hits_by_rule(api, domain).await?;
    let shown = api.limit("show", json!({"domain": domain})).await?;
    let shown = &shown["domains"][0];
    ensure!(
        shown["text"] == rules(domain) && shown["rules_total"] == 6,
        "{shown}"
    );
    let all = api.limit("show", json!({})).await?;
    ensure!(
        all["domains"].as_array().is_some_and(|it| !it.is_empty()),
        "{all}"
    );
    Ok(())
}

/// Those of all nodes, whichever of them was asked.
async fn hits_by_rule(api: &Api, domain: &str) -> Result<()> {
    let rule = format!("{domain} / ip");
    let counted = async || {
        eventually("each node tells", LONG, async || {
            let stats = api.limit("stats", json!({})).await?;
            let all = stats.get("nodes_unanswered").is_none();
            let three = stats["nodes"].as_array().is_some_and(|it| it.len() == 3);
            let rules = stats["rules"].as_array().cloned().unwrap_or_default();
            let found = rules.into_iter().find(|it| it["rule"] == rule.as_str());
            let hits = found.unwrap_or_default();
            let of = |field: &str| hits[field].as_u64().unwrap_or_default();
            Ok((all && three).then(|| (of("allowed"), of("refused"))))
        })
        .await
    };
    let (allowed, refused) = counted().await?;
    for hits in [2, 1] {
        let mut body = of("ip", "hits-by-rule");
        body["hits"] = json!(hits);
        ensure!(ok(api, domain, body).await?["allowed"] == true);
    }
    for _ in 0..4 {
        ensure!(ok(api, domain, of("ip", "hits-by-rule")).await?["allowed"] == false);
    }
    let after = counted().await?;
    ensure!(
        after == (allowed + 3, refused + 4),
        "{after:?} after {allowed} and {refused}"
    );
    Ok(())
}

async fn errors(api: &Api, domain: &str) -> Result<()> {
    for (body, says) in [
        (json!({}), "descriptors"),
        (json!({"descriptors": []}), "descriptors"),
        (json!({"descriptors": [[]]}), "descriptors[0]"),
        (
            json!({"descriptors": [[{"key": ""}]]}),
            "descriptors[0][0].key",
        ),
        (json!({"descriptors": [[{"key": "a"}]], "hits": -1}), "hits"),
    ] {
        let reply = api.check(domain, &body).await?;
        let error = reply.refused(api.format(), Code::BadRequest)?;
        let message = error["message"].as_str().unwrap_or_default();
        ensure!(message.contains(says), "{body}: {error}");
    }
    let reset = json!({"domain": domain, "descriptor": [{"key": "none"}]});
    api.limit_refused("reset", reset, Code::BadRequest).await?;
    let nowhere = json!({"domain": "nowhere"});
    api.limit_refused("show", nowhere, Code::DomainNotFound)
        .await?;
    api.limit_refused("nonsense", json!({}), Code::BadRequest)
        .await?;
    Ok(())
}

/// A hundred requests at the same time, through all nodes: exactly as many pass as may.
async fn together(api: Api) -> Result<()> {
    let domain = "limits-together";
    let text = format!(
        "domain: {domain}\ndescriptors:\n  - {{key: ip, rate_limit: {{unit: year, requests_per_unit: 40, algorithm: token_bucket}}}}\n  \
         - {{key: id, rate_limit: {{unit: year, requests_per_unit: 40, algorithm: token_bucket, exact: true}}}}\n"
    );
    apply_text(&api, domain, &text).await?;
    for key in ["ip", "id"] {
        let asked = (0..100).map(|_| ok(&api, domain, of(key, "a")));
        let answers = try_join_all(asked).await?;
        let passed = answers.iter().filter(|it| it["allowed"] == true).count();
        ensure!(passed == 40, "{key}: {passed}");
    }
    Ok(())
}

/// A check that one limit refuses uses up none of its others, in whichever shards they are: see "Limits in several shards" in
/// docs/rate-limits/exactness.md.
async fn all_or_none(api: Api, shards: u32) -> Result<()> {
    let domain = "limits-all-or-none";
    let text = format!(
        "domain: {domain}
descriptors:
  - {{key: site, rate_limit: {{unit: year, requests_per_unit: 5}}}}
  - {{key: user, rate_limit: {{unit: year, requests_per_unit: 1}}}}
  - {{key: sure_site, rate_limit: {{unit: year, requests_per_unit: 5, exact: true}}}}
  - {{key: sure_user, rate_limit: {{unit: year, requests_per_unit: 1, exact: true}}}}
"
    );
    apply_text(&api, domain, &text).await?;
    let of_domain = LineName::try_from(domain)?;
    let shard =
        |key: &str, value: &str| limit_shard_of(&of_domain, &[Entry::new(key, value)], shards);
    for (site, user) in [
        ("site", "user"),
        ("sure_site", "user"),
        ("site", "sure_user"),
        ("sure_site", "sure_user"),
    ] {
        for nth in 0..4 {
            let value = format!("{site}-{user}-{nth}");
            let others = (0..100).map(|it| format!("{value}-{it}"));
            let mut others = others.filter(|it| shard(user, it) != shard(site, &value));
            let other = others.next().context("all in one shard")?;
            let both = json!({"descriptors": [
                [{"key": site, "value": value}],
                [{"key": user, "value": other}],
            ]});
            let mut passed = 0;
            for _ in 0..8 {
                let answer = ok(&api, domain, both.clone()).await?;
                passed += u32::from(answer["allowed"] == true);
            }
            ensure!(passed == 1, "{site}, {user}: {passed} passed");
            eventually(
                "the refused checks left the site as it was",
                LONG,
                async || {
                    let mut left = of(site, &value);
                    left["hits"] = json!(0);
                    let left = ok(&api, domain, left).await?;
                    Ok((left["remaining"] == 4).then_some(()))
                },
            )
            .await?;
        }
    }
    Ok(())
}

/// In the metrics of all nodes together: what each rule did, also one in shadow mode, and by the values of requests where
/// the rule says so.
async fn rules_are_watched(cluster: &Cluster) -> Result<()> {
    let (api, domain) = (&cluster.api().within(ANSWERED_MS), "limits-watched");
    let text = format!(
        "domain: {domain}\ndescriptors:
  - {{key: ip, shadow_mode: true, rate_limit: {{unit: year, requests_per_unit: 5, algorithm: token_bucket}}}}
  - {{key: user, detailed_metric: true, rate_limit: {{unit: year, requests_per_unit: 5, exact: true, algorithm: token_bucket}}}}
"
    );
    apply_text(api, domain, &text).await?;
    for _ in 0..7 {
        ensure!(ok(api, domain, of("ip", "a")).await?["allowed"] == true);
    }
    let mut refused = json!({"descriptors": [[{"key": "user", "value": "ann"}]], "hits": 6});
    ensure!(ok(api, domain, refused.clone()).await?["allowed"] == false);
    // Nothing is counted, here as there.
    refused["dry_run"] = json!(true);
    ensure!(ok(api, domain, refused).await?["allowed"] == false);
    ensure!(ok(api, domain, of("user", "bob")).await?["allowed"] == true);

    let metrics = cluster.all_metrics().await?;
    for (rule, outcome, expected) in [
        ("ip", "within", 4.0),
        ("ip", "near", 1.0),
        ("ip", "shadow_over", 2.0),
        ("ip", "over", 0.0),
        ("user_ann", "over", 1.0),
        ("user_ann", "within", 0.0),
        ("user_bob", "within", 1.0),
        ("user", "within", 0.0),
    ] {
        let labels = [
            format!("rule=\"{domain}.{rule}\""),
            format!("outcome=\"{outcome}\""),
        ];
        let labels = labels.each_ref().map(String::as_str);
        let counted = metrics.iter();
        let counted = counted.map(|it| it.sum("nowserving_rate_limit_total", &labels));
        let counted: f64 = counted.sum();
        ensure!(counted == expected, "{labels:?}: {counted}");
    }
    Ok(())
}

/// kill -9 of all leaders: what was in a checkpoint counts, and hits on exact limits do.
async fn over_a_crash(cluster: &mut Cluster) -> Result<()> {
    let (api, domain) = (cluster.api().within(ANSWERED_MS), "limits-crash");
    apply(&api, domain).await?;
    for value in ["a", "b", "c", "d"] {
        ensure!(ok(&api, domain, of("ip", value)).await?["remaining"] == 2);
        ensure!(ok(&api, domain, of("account", value)).await?["remaining"] == 1);
    }
    eventually("everything is in a checkpoint", LONG, async || {
        let stats = api.limit("stats", json!({})).await?;
        let shards = stats["shards"].as_array().cloned().unwrap_or_default();
        let changed = shards.iter().any(|it| it["changed"] != 0);
        let all_answered = stats.get("unanswered").is_none();
        Ok((all_answered && !changed).then_some(()))
    })
    .await?;
    // Applied on a quorum at least: the last of it is committed before the leader counts it as written.
    let leader = cluster.leader_of("limits").await?;
    cluster.process(leader)?.kill().await?;
    for value in ["a", "b", "c", "d"] {
        let next = ok(&api, domain, of("ip", value)).await?;
        ensure!(next["remaining"] == 1, "{value}: {next}");
        let next = ok(&api, domain, of("account", value)).await?;
        ensure!(next["remaining"] == 0, "{value}: {next}");
    }
    cluster.start_node(leader).await?;
    cluster.wait_ready().await
}

pub async fn over_many_processes() -> Result<()> {
    for leader_dies in [false, true] {
        let report = limited::run(Plan {
            processes: 6,
            seconds: 9,
            quota_per_s: 20,
            exact_per_s: 4,
            leader_dies,
        })
        .await?;
        ensure!(report.refused > 0, "{report:?}");
    }
    Ok(())
}

/// The rules are in backups: what was counted is not.
async fn come_back(cluster: &mut Cluster) -> Result<()> {
    let (api, domain) = (cluster.api().clone(), "limits-backup");
    let cli = Cli::new(cluster.nats.url());
    apply(&api, domain).await?;
    let file = cluster.folder().join("limits.backup").display().to_string();
    cli.run(&["cluster", "backup", &file]).await?.done()?;
    let restore = ["cluster", "restore", &file];
    let outcome = async |words: &[&str]| {
        let done = cli.run(words).await?;
        let rules = done.lines.first().map(|it| it["rules"].clone());
        let rules = rules.unwrap_or_default();
        let mut all = rules.as_array().into_iter().flatten();
        let ours = all.find(|it| it["domain"] == domain);
        anyhow::Ok((done.code, ours.map(|it| it["outcome"].clone())))
    };
    ensure!(outcome(&restore).await? == (1, Some(json!("exists"))));
    api.limit("delete", json!({"domain": domain})).await?;
    // The command asks any node whether there are rules.
    known_everywhere(&api).await?;
    let dry = ["cluster", "restore", &file, "--dry-run"];
    ensure!(outcome(&dry).await?.1 == Some(json!("would_restore")));
    ensure!(outcome(&restore).await?.1 == Some(json!("restored")));
    let changed = format!("domain: {domain}\ndescriptors: []\n");
    api.limit("apply", json!({"rules": changed})).await?;
    known_everywhere(&api).await?;
    let overwrite = ["cluster", "restore", &file, "--overwrite", "--yes"];
    ensure!(outcome(&overwrite).await?.1 == Some(json!("replaced")));
    eventually("the rules are back", LONG, async || {
        let shown = api.limit("show", json!({"domain": domain})).await?;
        Ok((shown["domains"][0]["text"] == rules(domain)).then_some(()))
    })
    .await?;

    let one_node = Options {
        nodes: 1,
        shards: 7,
        ..Options::default()
    };
    let other = Cluster::start(one_node).await?;
    let done = Cli::new(other.nats.url()).run(&restore).await?.done()?;
    let restored = done["rules"]
        .as_array()
        .is_some_and(|all| !all.is_empty() && all.iter().all(|it| it["outcome"] == "restored"));
    ensure!(restored, "{done}");
    let passes = eventually("the node knows the rules", LONG, async || {
        let passes = ok(other.api(), domain, of("ip", "a")).await?;
        Ok(passes.get("unmatched").is_none().then_some(passes))
    });
    ensure!(passes.await?["remaining"] == 2);
    Ok(())
}

/// A node that is cut off from the others does not learn of rules, and must not say that there are none. It gets some of the
/// requests, and all of these are answered by the rules.
pub async fn beside_a_node_that_is_cut_off(cluster: &mut Cluster) -> Result<()> {
    let api = cluster.api().clone();
    cluster.set_peer_link(1, Link::Closed)?;
    eventually("it knows of no leader", LONG, async || {
        let status = api.cluster("status", json!({})).await?;
        let its_own = status["answered_by"] == 1 && status["shards"][0]["leader"].is_null();
        Ok(its_own.then_some(()))
    })
    .await?;
    apply(&api, "limits-cut").await?;
    cluster.set_peer_link(1, Link::Up)?;
    cluster.wait_ready().await
}

async fn by_command(cli: Cli) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("rules.yaml");
    let path = file.display().to_string();
    std::fs::write(&file, "domain: limits-command\ndescriptors: 5\n")?;
    cli.run(&["limit", "apply", &path])
        .await?
        .failed(2, "bad_request")?;
    std::fs::write(&file, rules("limits-command"))?;
    let dry = cli.run(&["limit", "apply", &path, "--dry-run"]).await?;
    ensure!(dry.done()?["dry_run"] == true);
    let applied = cli.run(&["limit", "apply", &path, "--by", "ann"]).await?;
    let applied = applied.done()?;
    ensure!(
        applied["changes"]
            .as_array()
            .is_some_and(|it| it.len() == 6),
        "{applied}"
    );
    let version = applied["version"].to_string();
    for if_version in [version.as_str(), "77"] {
        let words = ["limit", "apply", &path, "--if-version", if_version];
        // A node that does not know the rules yet refuses it.
        let again = eventually(
            "the same rules conflict with no version",
            LONG,
            async || {
                let again = cli.run(&words).await?;
                Ok((again.code == 0).then_some(again))
            },
        );
        let again = again.await?.done()?;
        ensure!(
            again["changes"] == json!([]) && again["version"] == applied["version"],
            "{again}"
        );
    }
    let words = ["limit", "show", "limits-command"];
    let shown = eventually("the rules are shown", LONG, async || {
        let shown = cli.run(&words).await?;
        Ok((shown.code == 0).then_some(shown))
    });
    ensure!(shown.await?.done()?["domains"][0]["by"] == "ann");
    let check = [
        "limit",
        "check",
        "limits-command",
        "ip=1.2.3.4",
        "--hits",
        "2",
    ];
    let checked = cli.run(&check).await?.done()?;
    ensure!(checked["allowed"] == true, "{checked}");
    let text = cli.run_as_text(&["limit", "test", "limits-command", "ip=1.2.3.4"]);
    ensure!(!text.await?.lines.is_empty());
    let text = cli.run_as_text(&["limit", "check", "limits-command", "acount=x"]);
    let lines = format!("{:?}", text.await?.lines);
    ensure!(lines.contains("no rule; the nearest: account=x"), "{lines}");
    let stats = cli.run(&["limit", "stats"]).await?.done()?;
    ensure!(stats["shards"].is_array(), "{stats}");
    let reset = ["limit", "reset", "limits-command", "ip=1.2.3.4"];
    cli.run(&reset).await?.done()?;
    let deleted = ["limit", "delete", "limits-command", "--dry-run"];
    ensure!(cli.run(&deleted).await?.done()?["dry_run"] == true);
    let deleted = ["limit", "delete", "limits-command"];
    let unasked = cli.run(&deleted).await?.failed(2, "bad_request")?;
    ensure!(unasked.to_string().contains("--yes"), "{unasked}");
    let deleted = ["limit", "delete", "limits-command", "--yes"];
    cli.run(&deleted).await?.done()?;
    cli.run(&deleted).await?.failed(1, "domain_not_found")?;
    Ok(())
}

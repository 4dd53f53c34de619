//! Which crate may use which: the arrows of ARCHITECTURE.md, read from `cargo metadata`.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use serde_json::Value;

use super::Finding;

/// The packages that a crate must not reach, not even by way of others.
const FORBIDDEN: &str = "\
nowserving-line: tokio async-nats raft rand getrandom serde
nowserving-limit: tokio async-nats raft rand getrandom serde nowserving-line
nowserving-kv: tokio async-nats raft rand getrandom serde nowserving-line
nowserving-protocol: tokio async-nats raft getrandom ed25519-dalek nowserving-shard
nowserving-pass: tokio async-nats raft nowserving-shard
nowserving-shard: tokio async-nats raft rand getrandom nowserving-replica nowserving-engine
nowserving-replica: tokio async-nats nowserving-shard nowserving-pass nowserving-log nowserving-engine nowserving-node
nowserving-log: tokio async-nats nowserving-engine nowserving-node
nowserving-engine: tokio async-nats nowserving-pass nowserving-log nowserving-node
nowserving-front: tokio async-nats nowserving-log nowserving-node
nowserving-node: nowserving-client nowserving nowserving-sim
nowserving-sim: tokio async-nats nowserving-node nowserving
nowserving-rehearse: tokio async-nats raft
nowserving-security: raft nowserving-protocol nowserving-engine nowserving-node nowserving-client
nowserving-client: raft nowserving-shard nowserving-replica nowserving-log nowserving-engine nowserving-node
nowserving-tower: raft nowserving-shard nowserving-replica nowserving-log nowserving-engine nowserving-node hyper axum tonic
nowserving-envoy: raft nowserving-shard nowserving-replica nowserving-log nowserving-engine nowserving-node
nowserving-gateway: raft nowserving-shard nowserving-replica nowserving-log nowserving-engine nowserving-node
nowserving-insight: raft nowserving-shard nowserving-replica nowserving-log nowserving-engine nowserving-node nowserving-terminal
nowserving-words: tokio nowserving-line nowserving-protocol
nowserving-terminal: raft nowserving-engine nowserving-node nowserving-tools nowserving
nowserving-tools: nowserving nowserving-envoy nowserving-sim
nowserving: nowserving-sim nowserving-e2e nowserving-compare
";

/// What a crate must not name in its manifest. `raft` brings these along: its own draws are replaced
/// by the replica's caller (`Replica::set_randomized_election_ticks`).
const NOT_NAMED: &str = "\
nowserving-replica: rand getrandom
nowserving-engine: rand getrandom
";

/// All that a crate may name in its manifest, where the list is short enough to be closed.
const ONLY: &str = "\
nowserving-codec: nowserving-codec-derive thiserror
nowserving-codec-derive: proc-macro2 quote syn
nowserving-line: libm nowserving-bite nowserving-codec sha2 thiserror
nowserving-adapt: thiserror
nowserving-calendar: jiff
nowserving-limit: nowserving-calendar nowserving-codec saphyr-parser thiserror
nowserving-kv: nowserving-bite nowserving-codec thiserror
nowserving-security: async-nats nkeys rustls-pki-types serde thiserror tokio-rustls tracing
";

/// The lines of a table: a crate, and a list of packages.
fn rules(table: &str) -> impl Iterator<Item = (&str, &str)> {
    table.lines().filter_map(|line| line.split_once(": "))
}

/// For each package, what it depends on in normal builds (not in tests or build scripts).
type Graph = BTreeMap<String, BTreeSet<String>>;

/// Applies the rules to what `cargo metadata` printed.
pub fn check(metadata: &Value) -> Result<Vec<Finding>> {
    Ok(broken(&graph(metadata)?))
}

fn broken(graph: &Graph) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut found = |name: &str, what: String| {
        findings.push(Finding {
            path: format!("package {name}"),
            line: 0,
            what,
        });
    };
    let lists = |list: &str, name: &str| list.split_whitespace().any(|listed| listed == name);
    for (name, forbidden) in rules(FORBIDDEN) {
        for target in forbidden.split_whitespace() {
            if let Some(way) = way(graph, name, target) {
                let way = way.join(" -> ");
                found(name, format!("may not depend on {target}: {way}"));
            }
        }
    }
    for (name, forbidden) in rules(NOT_NAMED) {
        let used = graph.get(name).into_iter().flatten();
        for other in used.filter(|other| lists(forbidden, other)) {
            found(name, format!("may not name {other} in its manifest"));
        }
    }
    for (name, only) in rules(ONLY) {
        let used = graph.get(name).into_iter().flatten();
        for other in used.filter(|other| !lists(only, other)) {
            let what = format!("depends on {other}; it may use nothing but {only}");
            found(name, what);
        }
    }
    findings
}

/// A way from one package to another, both ends included.
fn way(graph: &Graph, from: &str, to: &str) -> Option<Vec<String>> {
    let mut seen = BTreeSet::new();
    let mut ways = vec![vec![from.to_owned()]];
    while let Some(way) = ways.pop() {
        for next in way
            .last()
            .and_then(|last| graph.get(last))
            .into_iter()
            .flatten()
        {
            let mut longer = way.clone();
            longer.push(next.clone());
            if next == to {
                return Some(longer);
            }
            if seen.insert(next.clone()) {
                ways.push(longer);
            }
        }
    }
    None
}

fn graph(metadata: &Value) -> Result<Graph> {
    let packages = list(metadata, "packages")?.iter();
    let names = packages.map(|package| (package["id"].as_str(), package["name"].as_str()));
    let names: BTreeMap<_, _> = names.collect();
    let name = |id: &Value| {
        let name = names.get(&id.as_str()).copied().flatten();
        let name = name.map(str::to_owned);
        name.with_context(|| format!("cargo metadata has no package {id}"))
    };
    // Two versions of one package count as one: the rules do not care which.
    let mut graph = Graph::new();
    for node in list(&metadata["resolve"], "nodes")? {
        let uses = graph.entry(name(&node["id"])?).or_default();
        for dep in list(node, "deps")? {
            let mut kinds = list(dep, "dep_kinds")?.iter();
            if kinds.any(|kind| kind["kind"].is_null()) {
                uses.insert(name(&dep["pkg"])?);
            }
        }
    }
    Ok(graph)
}

fn list<'a>(of: &'a Value, name: &str) -> Result<&'a Vec<Value>> {
    let list = of[name].as_array();
    list.with_context(|| format!("cargo metadata has no {name}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn graph_of(edges: &[(&str, &[&str])]) -> Graph {
        edges
            .iter()
            .map(|(from, to)| {
                (
                    (*from).to_owned(),
                    to.iter().map(|to| (*to).to_owned()).collect(),
                )
            })
            .collect()
    }

    #[test]
    fn a_forbidden_package_is_found_by_way_of_others() {
        let graph = graph_of(&[
            ("nowserving-replica", &["a", "b"]),
            ("b", &["c"]),
            ("c", &["b", "tokio"]),
        ]);
        let found = broken(&graph);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0]
                .what
                .contains("nowserving-replica -> b -> c -> tokio"),
            "{found:?}"
        );
    }

    #[test]
    fn the_line_may_use_nothing_else() {
        assert!(broken(&graph_of(&[("nowserving-line", &["thiserror"])])).is_empty());
        let found = broken(&graph_of(&[("nowserving-line", &["thiserror", "serde"])]));
        assert_eq!(
            found.len(),
            2,
            "named, and not in the short list: {found:?}"
        );
    }

    #[test]
    fn every_rule_of_the_table_bites() {
        for (name, forbidden) in rules(FORBIDDEN).chain(rules(NOT_NAMED)) {
            for target in forbidden.split_whitespace() {
                assert!(
                    !broken(&graph_of(&[(name, &[target])])).is_empty(),
                    "{name} -> {target}"
                );
            }
        }
    }

    #[test]
    fn only_normal_dependencies_count() -> Result<()> {
        let metadata = json!({
            "packages": [{"id": "1", "name": "nowserving-log"}, {"id": "2", "name": "tokio"}, {"id": "3", "name": "raft"}],
            "resolve": {"nodes": [{"id": "1", "deps": [
                {"pkg": "2", "dep_kinds": [{"kind": "dev"}, {"kind": "build"}]},
                {"pkg": "3", "dep_kinds": [{"kind": "dev"}, {"kind": null}]},
            ]}]},
        });
        assert_eq!(
            graph(&metadata)?,
            graph_of(&[("nowserving-log", &["raft"])])
        );
        assert!(check(&metadata)?.is_empty());
        Ok(())
    }
}

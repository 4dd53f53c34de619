//! The files of `deploy/`, checked by the programs that they are for.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::steps::Done;
use crate::{nats, packages, prometheus, python, shell};

const FOLDER: &str = "deploy";
/// Brings the schemas of this release of Kubernetes, and PyYAML.
const KUBERNETES_VALIDATE: &str = "kubernetes-validate==1.32.0";
/// Loads each file, and looks for the files that a kustomization names.
const READ_YAML: &str = "\
import os, sys, yaml
for path in sys.argv[1:]:
    with open(path) as file:
        documents = list(yaml.safe_load_all(file))
    if os.path.basename(path) == 'kustomization.yaml':
        for name in documents[0]['resources']:
            assert os.path.exists(os.path.join(os.path.dirname(path), name)), f'{path}: no {name}'
";

/// Checks all of it. Skipped where Prometheus's programs cannot be had.
pub fn check() -> Result<Done> {
    let root = shell::root().join(FOLDER);
    let queries = dashboards(&root.join("grafana/dashboards"))?;
    yaml(&root)?;
    nats_configuration()?;
    systemd_unit(&root)?;
    let programs = match prometheus::ensure() {
        Ok(programs) => programs,
        Err(error) => return Ok(Done::Skipped(format!("{error:#}"))),
    };
    let promtool = programs.promtool.to_string_lossy();
    let run = |program: &str, words: &str| shell::run(&mut shell::command(program, words));
    run(&promtool, "check config deploy/prometheus/prometheus.yml")?;
    run(&promtool, "test rules deploy/prometheus/rules_test.yml")?;
    let amtool = programs.amtool.to_string_lossy();
    run(&amtool, "check-config deploy/alertmanager/alertmanager.yml")?;
    parse_queries(&promtool, &queries)?;
    Ok(Done::Passed)
}

/// The queries of all dashboards, which are JSON with a title, a uid of their own and panels.
fn dashboards(folder: &Path) -> Result<Vec<String>> {
    let mut queries = Vec::new();
    let mut uids = Vec::new();
    for file in files(folder, "json")? {
        let name = file.display();
        let dashboard: Value = serde_json::from_str(&fs::read_to_string(&file)?)
            .with_context(|| format!("{name} is not JSON"))?;
        let uid = dashboard["uid"].as_str().unwrap_or_default();
        ensure!(!uid.is_empty() && dashboard["title"].is_string(), "{name}");
        ensure!(!uids.contains(&uid.to_owned()), "{name}: `{uid}` is taken");
        uids.push(uid.to_owned());
        let before = queries.len();
        for panel in dashboard["panels"].as_array().into_iter().flatten() {
            let targets = panel["targets"].as_array().into_iter().flatten();
            queries.extend(targets.filter_map(|target| target["expr"].as_str().map(with_values)));
        }
        ensure!(queries.len() > before, "{name} has no queries");
    }
    ensure!(!queries.is_empty(), "{}: no dashboard", folder.display());
    Ok(queries)
}

/// Grafana puts durations in place of these; its other variables stand in quotes here.
fn with_values(query: &str) -> String {
    query
        .replace("$__rate_interval", "1m")
        .replace("$__range", "1h")
}

/// promtool has no command for a single query: as rules it parses them.
fn parse_queries(promtool: &str, queries: &[String]) -> Result<()> {
    let rules = queries.iter().enumerate().map(|(nth, query)| {
        let name = format!("dashboards:query{nth}");
        serde_json::json!({ "record": name, "expr": query })
    });
    let rules: Vec<Value> = rules.collect();
    // JSON is YAML.
    let text = serde_json::json!({"groups": [{"name": "dashboards", "rules": rules}]}).to_string();
    let file = shell::scratch("dashboards.rules.yml")?;
    fs::write(&file, text)?;
    let mut check = shell::command(promtool, "check rules");
    shell::run(check.arg(&file))
}

fn yaml(root: &Path) -> Result<()> {
    let bin = python::environment("kubernetes", &[KUBERNETES_VALIDATE], "kubernetes-validate")?;
    let python = bin.join("python").to_string_lossy().into_owned();
    let mut read = shell::command(&python, "-c");
    let everything = [files(root, "yaml")?, files(root, "yml")?].concat();
    shell::run(read.arg(READ_YAML).args(&everything))?;
    let validate = bin.join("kubernetes-validate");
    // It has no schema of the two files' kinds, and says so; they are only read.
    let mut validate = shell::command(
        &validate.to_string_lossy(),
        "--strict --quiet --no-warn -k 1.32.0",
    );
    shell::run(validate.args(files(&root.join("kubernetes"), "yaml")?))
}

/// By the server itself.
fn nats_configuration() -> Result<()> {
    let nats_server = nats::ensure()?;
    let words = "-t -c deploy/docker/nats.conf";
    let mut test = shell::command(&nats_server.to_string_lossy(), words);
    shell::run(test.env("SERVER", "nats-1"))
}

/// By systemd, if there is one. It wants the program to exist, so the copy that it checks has another one.
fn systemd_unit(root: &Path) -> Result<()> {
    if !packages::has("systemd-analyze") {
        eprintln!("   systemd-analyze is missing: the unit is not checked");
        return Ok(());
    }
    let unit = fs::read_to_string(root.join("systemd/nowserving.service"))?;
    let copy = shell::scratch("nowserving.service")?;
    fs::write(
        &copy,
        unit.replace("/usr/local/bin/nowserving", "/bin/true"),
    )?;
    shell::run(shell::command("systemd-analyze", "verify").arg(&copy))
}

/// All files below a folder whose names end so, in order.
fn files(folder: &Path, extension: &str) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(files(&path, extension)?);
        } else if path.extension().is_some_and(|it| it == extension) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

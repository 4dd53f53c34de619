//! The files of `deploy/`, checked by the programs that they are for.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::check::unless_ci;
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
        for name in documents[0].get('resources', []) + documents[0].get('components', []):
            assert os.path.exists(os.path.join(os.path.dirname(path), name)), f'{path}: no {name}'
";
/// Each alert fires in at least one of the rules' tests, and those name no other alerts (promtool would let a misspelt one
/// pass where nothing is to fire), nor does Alertmanager.
const ALERTS_TESTED: &str = "\
import re, sys, yaml
def load(path):
    with open(path) as file:
        return yaml.safe_load(file)
rules, manager, *tests = sys.argv[1:]
alerts = {rule['alert'] for group in load(rules)['groups'] for rule in group['rules'] if 'alert' in rule}
cases = [case for path in tests for test in load(path)['tests'] for case in test['alert_rule_test']]
fire = {case['alertname'] for case in cases if case['exp_alerts']}
with open(manager) as file:
    named = set(re.findall('Nowserving[A-Z][A-Za-z]*', file.read()))
named |= {case['alertname'] for case in cases}
assert alerts, f'{rules}: no alert'
assert alerts <= fire, f'no test has these fire: {sorted(alerts - fire)}'
assert named <= alerts, f'no such alerts: {sorted(named - alerts)}'
";

/// Checks all of it, and says which programs were missing for some. Skipped where Prometheus's cannot be had, but in CI.
pub fn check() -> Result<Done> {
    let root = shell::root().join(FOLDER);
    let queries = dashboards(&root.join("grafana/dashboards"))?;
    let mut without = Vec::new();
    if !yaml(&root)? {
        without.push("components for Kubernetes: no kubectl".to_owned());
    }
    alerts_are_tested(&root)?;
    nats_configuration()?;
    if !systemd_unit(&root)? {
        without.push("the unit: no systemd-analyze".to_owned());
    }
    let Some(programs) = unless_ci(prometheus::ensure())? else {
        return Ok(Done::Skipped("no Prometheus".to_owned()));
    };
    let promtool = programs.promtool.to_string_lossy();
    let run = |program: &str, words: &str| shell::run(&mut shell::command(program, words));
    run(&promtool, "check config deploy/prometheus/prometheus.yml")?;
    let tests = rule_tests(&root)?;
    shell::run(shell::command(&promtool, "test rules").args(&tests))?;
    let amtool = programs.amtool.to_string_lossy();
    run(&amtool, "check-config deploy/alertmanager/alertmanager.yml")?;
    parse_queries(&promtool, &queries)?;
    Ok(Done::passed_without(without))
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

/// The manifests and all other YAML; false if the components for Kubernetes were only read.
fn yaml(root: &Path) -> Result<bool> {
    let bin = kubernetes_validate()?;
    let mut read = python_script(&bin, READ_YAML);
    let everything = [files(root, "yaml")?, files(root, "yml")?].concat();
    shell::run(read.args(&everything))?;
    let validate = bin.join("kubernetes-validate");
    // It has no schema of ServiceMonitor, Kustomization and Component, and says so; they are only read.
    let words = "--strict --quiet --no-warn -k 1.32.0";
    let validate = || shell::command(&validate.to_string_lossy(), words);
    let manifests = files(&root.join("kubernetes"), "yaml")?;
    shell::run(validate().args(&manifests))?;
    match with_components(root, &manifests)? {
        Some(whole) => shell::run(validate().arg(whole)).map(|()| true),
        None => Ok(false),
    }
}

/// The manifests with all components, as kubectl puts them together; `None` without it. In a copy, as the shipped
/// kustomization has the components as comments.
fn with_components(root: &Path, manifests: &[PathBuf]) -> Result<Option<PathBuf>> {
    if !shell::succeeds(&mut shell::command("kubectl", "version --client")) {
        return Ok(None);
    }
    let folder = shell::scratch("kubernetes")?;
    let commented = "# components:\n#   - tls\n#   - login\n";
    let mut found = false;
    for path in manifests {
        let copy = folder.join(path.strip_prefix(root.join("kubernetes"))?);
        fs::create_dir_all(copy.parent().context("a folder")?)?;
        let text = fs::read_to_string(path)?;
        found |= text.contains(commented);
        let switched_on = commented.replace("# ", "");
        fs::write(copy, text.replace(commented, &switched_on))?;
    }
    ensure!(found, "no kustomization has {commented:?}");
    let mut build = shell::command("kubectl", "kustomize");
    let whole = shell::scratch("kubernetes.yaml")?;
    fs::write(&whole, shell::output(build.arg(&folder))?)?;
    Ok(Some(whole))
}

/// The folder of a Python that has it, and PyYAML.
fn kubernetes_validate() -> Result<PathBuf> {
    let works = ["kubernetes-validate", "--version"];
    python::environment("kubernetes", &[KUBERNETES_VALIDATE], &works)
}

fn python_script(bin: &Path, script: &str) -> Command {
    let mut python = shell::command(&bin.join("python").to_string_lossy(), "-c");
    python.arg(script);
    python
}

fn alerts_are_tested(root: &Path) -> Result<()> {
    let mut check = python_script(&kubernetes_validate()?, ALERTS_TESTED);
    check.arg(root.join("prometheus/rules.yml"));
    check.arg(root.join("alertmanager/alertmanager.yml"));
    shell::run(check.args(rule_tests(root)?))
}

fn rule_tests(root: &Path) -> Result<Vec<PathBuf>> {
    files(&root.join("prometheus"), "yml").map(|mut found| {
        found.retain(|path| path.to_string_lossy().ends_with("_test.yml"));
        found
    })
}

/// By the server itself.
fn nats_configuration() -> Result<()> {
    let nats_server = nats::ensure()?;
    let words = "-t -c deploy/docker/nats.conf";
    let mut test = shell::command(&nats_server.to_string_lossy(), words);
    shell::run(test.env("SERVER", "nats-1"))
}

/// By systemd; false if there is none. It wants the program to exist, so the copy that it checks has another one.
fn systemd_unit(root: &Path) -> Result<bool> {
    if !packages::has("systemd-analyze") {
        return Ok(false);
    }
    let unit = fs::read_to_string(root.join("systemd/nowserving.service"))?;
    let copy = shell::scratch("nowserving.service")?;
    fs::write(
        &copy,
        unit.replace("/usr/local/bin/nowserving", "/bin/true"),
    )?;
    shell::run(shell::command("systemd-analyze", "verify").arg(&copy)).map(|()| true)
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

//! Our own SDK runs the scenarios of `contract/`, as those in other languages do. The format is in `contract/README.md`.
//! Those about one watcher, without a cluster, are run by a test of the SDK's crate.

mod matcher;
mod names;
mod sdk;
mod stand_in;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use async_nats::{HeaderMap, Request};
use nowserving_e2e::{Api, Cluster, Nats, Scenarios, number};
use serde_json::{Value, json};

use self::names::Names;
use self::sdk::{Came, Sdk};
use self::stand_in::StandIn;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../contract");
const STEP_FIELDS: [&str; 9] = [
    "do",
    "with",
    "client",
    "expect",
    "fails",
    "keep",
    "within_ms",
    "at_least_ms",
    "why",
];
/// How long a step may take that does not say so.
const STEP_MS: u64 = 10_000;
/// Longer than a node takes to answer.
const ANSWERED_WITHIN: Duration = Duration::from_millis(2_200);

/// All of them side by side, but for those that kill a leader.
pub async fn scenarios(cluster: &mut Cluster) -> Result<()> {
    let (kill, others): (Vec<_>, Vec<_>) = read()?.into_iter().partition(Scenario::kills);
    ensure!(!others.is_empty(), "no scenarios in {FOLDER}");
    let mut beside = Scenarios::default();
    for scenario in &others {
        let run = Run::new(scenario, cluster)?;
        beside = beside.with(scenario.name.clone(), run.all(None));
    }
    beside.run().await?;
    for scenario in &kill {
        let run = Run::new(scenario, cluster)?;
        run.all(Some(&mut *cluster))
            .await
            .with_context(|| scenario.name.clone())?;
    }
    Ok(())
}

struct Scenario {
    name: String,
    fields: Value,
}

impl Scenario {
    fn steps(&self) -> Result<&[Value]> {
        steps_in(&self.fields)
    }

    fn does(&self, what: impl Fn(&str) -> bool) -> bool {
        let mut steps = self.steps().into_iter().flatten();
        steps.any(|step| step["do"].as_str().is_some_and(&what))
    }

    fn kills(&self) -> bool {
        self.does(|operation| operation == "kill_leader")
    }
}

fn steps_in(value: &Value) -> Result<&[Value]> {
    let steps = value["steps"].as_array().context("no steps")?;
    Ok(steps)
}

fn read() -> Result<Vec<Scenario>> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(FOLDER).context(FOLDER)? {
        let path = entry?.path();
        if path.extension().is_none_or(|it| it != "json") {
            continue;
        }
        let stem = path.file_stem().unwrap_or_default();
        let scenario = Scenario {
            name: format!("contract_{}", stem.to_string_lossy()),
            fields: serde_json::from_slice(&std::fs::read(&path)?)
                .with_context(|| path.display().to_string())?,
        };
        if !scenario.does(|operation| operation.starts_with("watcher.")) {
            all.push(scenario);
        }
    }
    Ok(all)
}

/// One scenario while it runs.
struct Run<'a> {
    scenario: &'a Scenario,
    names: Names,
    line: String,
    domain: String,
    api: Api,
    url: String,
    /// For the server of one that needs its own.
    folder: PathBuf,
    sdk: Sdk,
    stand_ins: Vec<StandIn>,
}

impl<'a> Run<'a> {
    fn new(scenario: &'a Scenario, cluster: &Cluster) -> Result<Run<'a>> {
        let folder = cluster.folder().join(&scenario.name);
        std::fs::create_dir_all(&folder)?;
        let random = || RandomState::new().build_hasher().finish();
        let random = format!("{:016x}{:016x}", random(), random());
        let (line, domain) = (format!("l{random:.12}"), format!("d{random:.12}"));
        let mut names = Names::default();
        names.set("line", line.clone());
        names.set("domain", domain.clone());
        names.set("random", random);
        Ok(Run {
            scenario,
            names,
            api: cluster.api().clone(),
            url: cluster.nats.url(),
            folder,
            sdk: Sdk::new(&line, &domain),
            line,
            domain,
            stand_ins: Vec::new(),
        })
    }

    /// `cluster`: of one that kills a leader.
    async fn all(mut self, mut cluster: Option<&mut Cluster>) -> Result<()> {
        let scenario = self.scenario;
        let fields = &scenario.fields;
        // Ends with this function.
        let mut server = None;
        match fields["needs"].as_str() {
            Some("nothing") => {}
            Some("cluster") => {
                let named = json!({"name": ""});
                if let Err(error) = self.sdk.connect(&self.url, &named).await? {
                    bail!("no connection: {error}");
                }
                if let Some(settings) = fields.get("line") {
                    let settings = settings.clone();
                    self.api.admin(&self.line, "create", settings).await?;
                }
                if let Some(rules) = fields["rules"].as_str() {
                    let rules = self.names.text(rules);
                    self.api.apply_rules(&self.domain, &rules).await?;
                }
            }
            Some("nats") => {
                let users = of_users(&fields["users"])?;
                let started = Nats::start_without_streams(&self.folder, &users).await?;
                self.url = started.url();
                server = Some(started);
            }
            other => bail!("needs {other:?}"),
        }
        let mut steps = Vec::new();
        flatten(steps_in(fields)?, "", None, &mut steps)?;
        for Step { at, nth, fields } in steps {
            if let Some(nth) = nth {
                self.names.set("nth", nth);
            }
            let step = self.step(fields, cluster.as_deref_mut());
            step.await.with_context(|| format!("step {at}"))?;
        }
        drop(server);
        Ok(())
    }

    async fn step(&mut self, step: &Value, cluster: Option<&mut Cluster>) -> Result<()> {
        let fields = step.as_object().context("a step is an object")?;
        let unknown = fields
            .keys()
            .find(|name| !STEP_FIELDS.contains(&name.as_str()));
        ensure!(unknown.is_none(), "{unknown:?} is unknown");
        let most = step["within_ms"].as_u64().unwrap_or(STEP_MS);
        let begin = Instant::now();
        let operation = self.operation(step, cluster);
        let came = tokio::time::timeout(Duration::from_millis(most), operation).await;
        let came = came.with_context(|| format!("took more than {most} ms"))??;
        let took = begin.elapsed();
        let least = Duration::from_millis(step["at_least_ms"].as_u64().unwrap_or_default());
        ensure!(took >= least, "took only {took:?}");
        let (matcher, result) = match (fields.get("fails"), came) {
            (Some(matcher), Err(error)) => (Some(matcher), error),
            (Some(_), Ok(result)) => bail!("succeeded with {result}"),
            (None, Ok(result)) => (fields.get("expect"), result),
            (None, Err(error)) => bail!("failed with {error}"),
        };
        if let Some(matcher) = matcher {
            matcher::check(&self.names.put(matcher), &result, "the result")?;
        }
        for (name, path) in step["keep"].as_object().into_iter().flatten() {
            let path = path.as_str().context("a path is a text")?;
            let words = path.split('.').filter(|word| !word.is_empty());
            let part = words.fold(&result, |part, word| match word.parse::<usize>() {
                Ok(nth) => &part[nth],
                Err(_) => &part[word],
            });
            self.names.set(self.names.text(name), part.clone());
        }
        Ok(())
    }

    async fn operation(&mut self, step: &Value, cluster: Option<&mut Cluster>) -> Result<Came> {
        let operation = step["do"].as_str().context("no operation")?;
        // `$t$nth` is `$t3`, and then what that stands for.
        let args = self.names.put(&self.names.put(&step["with"]));
        let body = || args["body"].clone();
        let done = match operation {
            "wait" => {
                let ms = number(&args, "ms")?;
                tokio::time::sleep(Duration::from_millis(ms)).await;
                Value::Null
            }
            "operator" => {
                let op = text(&args, "op")?;
                self.api.admin(&self.line, op, body()).await?
            }
            "request" => self.request(&args).await?,
            "kill_leader" => {
                let cluster = cluster.context("this scenario runs beside others")?;
                let leader = cluster.leader_of(&self.line).await?;
                cluster.process(leader)?.kill().await?;
                cluster.start_node(leader).await?;
                Value::Null
            }
            "stand_in" => {
                let (prefix, shards) = (text(&args, "prefix")?, args["shards"].as_u64());
                let answers = args["answers"].as_array().context("no answers")?;
                let opened = StandIn::open(&self.api, prefix, answers, shards).await?;
                self.stand_ins.push(opened);
                Value::Null
            }
            "stand_in.seen" => self.stand_ins.last().context("no stand-in")?.seen(),
            "connect" => return self.sdk.connect(&self.url, &args).await,
            _ => {
                let client = step["client"].as_str().unwrap_or_default();
                let common = &self.scenario.fields;
                return self.sdk.does(operation, client, &args, common).await;
            }
        };
        Ok(Ok(done))
    }

    async fn request(&self, args: &Value) -> Result<Value> {
        let mut headers = HeaderMap::new();
        for (name, value) in args["headers"].as_object().into_iter().flatten() {
            headers.insert(name.as_str(), value.as_str().context("a header is a text")?);
        }
        let request = Request::new()
            .payload(args["body"].to_string().into())
            .headers(headers)
            .timeout(Some(ANSWERED_WITHIN));
        let subject = text(args, "subject")?.to_owned();
        let reply = self.api.client().send_request(subject, request).await?;
        Ok(serde_json::from_slice(&reply.payload)?)
    }
}

/// A step in the order in which they are done.
struct Step<'a> {
    /// Where it stands.
    at: String,
    /// `$nth`
    nth: Option<u64>,
    fields: &'a Value,
}

/// Repeated steps stand as often as they are done.
fn flatten<'a>(
    steps: &'a [Value],
    within: &str,
    nth: Option<u64>,
    all: &mut Vec<Step<'a>>,
) -> Result<()> {
    for (number_in, fields) in (1..).zip(steps) {
        let at = format!("{within}{number_in} ({})", fields["do"]);
        if fields["do"] == "repeat" {
            let repeated = &fields["with"];
            for nth in 1..=number(repeated, "times")? {
                let within = format!("{at}, {nth}. time: ");
                flatten(steps_in(repeated)?, &within, Some(nth), all)?;
            }
        } else {
            all.push(Step { at, nth, fields });
        }
    }
    Ok(())
}

/// A part of a server's configuration. NATS reads JSON, too.
fn of_users(users: &Value) -> Result<String> {
    let users = users.as_object().context("no users")?.iter();
    let users = users.map(|(name, rights)| {
        let allow = |what: &str| json!({"allow": rights[what]});
        json!({
            "user": name,
            "password": name,
            "permissions": {"publish": allow("publish"), "subscribe": allow("subscribe")},
        })
    });
    let users: Vec<Value> = users.collect();
    Ok(format!("authorization: {}\n", json!({"users": users})))
}

fn text<'v>(args: &'v Value, name: &str) -> Result<&'v str> {
    let text = args[name].as_str();
    text.with_context(|| format!("no text {name} in {args}"))
}

//! The operations that the SDK does.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use futures::StreamExt;
use nowserving_client::{
    Ask, Client, ClientOptions, Error, Guard, GuardOptions, LimitFallback, LimiterOptions, Line,
    PlacesFromEvents, Refused, Slot, Standing, StatusReply, TokenBy, Tracker,
};
use nowserving_e2e::number;
use nowserving_line::{LaneName, LineName};
use nowserving_protocol::limits::{Check, Entry, limit_shard_of};
use nowserving_protocol::subject::shard_of;
use nowserving_protocol::user::Key;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::{matcher, text};

/// How long checks and the calls of a guard may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// The result of an operation, or the SDK's error.
pub type Came = Result<Value, Value>;

/// What the steps before have made of the SDK.
pub struct Sdk {
    line: String,
    domain: String,
    clients: BTreeMap<String, Client>,
    tracked: BTreeMap<String, Tracked>,
    places: PlacesFromEvents,
    guard: Option<Guard>,
    asking: BTreeMap<String, JoinHandle<Result<Slot, Refused>>>,
    slots: BTreeMap<String, Slot>,
}

struct Tracked {
    statuses: Tracker,
    last: Option<StatusReply>,
}

impl Drop for Sdk {
    fn drop(&mut self) {
        self.asking.values().for_each(JoinHandle::abort);
    }
}

impl Sdk {
    pub fn new(line: &str, domain: &str) -> Sdk {
        Sdk {
            line: line.to_owned(),
            domain: domain.to_owned(),
            clients: BTreeMap::new(),
            tracked: BTreeMap::new(),
            places: PlacesFromEvents::new(),
            guard: None,
            asking: BTreeMap::new(),
            slots: BTreeMap::new(),
        }
    }

    pub async fn connect(&mut self, url: &str, args: &Value) -> Result<Came> {
        let mut options = ClientOptions::default();
        if let Some(prefix) = args["prefix"].as_str() {
            options.prefix = prefix.to_owned();
        }
        if let Some(ms) = args["deadline_ms"].as_u64() {
            options.deadline = Duration::from_millis(ms);
        }
        let url = match args["user"].as_str() {
            None => url.to_owned(),
            Some(user) => {
                let password = args["password"].as_str().unwrap_or(user);
                url.replacen("://", &format!("://{user}:{password}@"), 1)
            }
        };
        let connected = Client::connect_with(&url, options).await;
        let name = text(args, "name")?.to_owned();
        came(connected.map(|client| drop(self.clients.insert(name, client))))
    }

    /// `common`: the scenario's fields of boards and events.
    pub async fn does(
        &mut self,
        operation: &str,
        client: &str,
        args: &Value,
        common: &Value,
    ) -> Result<Came> {
        if let Some(what) = operation.strip_prefix("places.") {
            return self.of_places(what, args, common).map(Ok);
        }
        if let Some(shard) = shard(operation, args)? {
            return Ok(Ok(shard.into()));
        }
        let client = self.clients.get(client);
        let client = client.with_context(|| format!("no client for {operation}"))?;
        let line = client.line(&self.line)?;
        if operation == "check" {
            let mut options = LimiterOptions::default();
            options.on_unavailable = LimitFallback::Fail;
            options.patience = PATIENCE;
            let limiter = client.limiter_with(&self.domain, options)?;
            let check: Check = serde_json::from_value(args.clone())?;
            return came(limiter.check_with(&check).await);
        }
        if operation == "track" || operation.starts_with("track.") {
            return self.track(operation, &line, args).await;
        }
        match operation.strip_prefix("guard.") {
            Some(what) => self.guard(what, line, args).await,
            None => call(&line, operation, args).await,
        }
    }

    fn of_places(&mut self, what: &str, args: &Value, common: &Value) -> Result<Value> {
        match what {
            "board" => {
                self.places.board(&laid_over(common, args, "board")?);
            }
            "token" => self.places.token(&laid_over(common, args, "event")?),
            "line" => self.places.line(&laid_over(common, args, "event")?),
            "standing" => {
                let lane = LaneName::try_from(text(args, "lane")?)?;
                let standing = self.places.standing(&lane, number(args, "token")?);
                return Ok(match standing {
                    Standing::Position(at) => json!({"standing": "position", "position": at}),
                    Standing::Passed => json!({"standing": "passed"}),
                    Standing::Unknown => json!({"standing": "unknown"}),
                });
            }
            _ => bail!("places.{what} is unknown"),
        }
        Ok(Value::Null)
    }

    async fn track(&mut self, operation: &str, line: &Line, args: &Value) -> Result<Came> {
        let name = text(args, "name")?;
        if operation == "track" {
            let tracked = Tracked {
                statuses: line.track(text(args, "ticket")?),
                last: None,
            };
            self.tracked.insert(name.to_owned(), tracked);
            return Ok(Ok(Value::Null));
        }
        let tracked = self.tracked.get_mut(name);
        let tracked = tracked.with_context(|| format!("{name} is not tracked"))?;
        while let Some(next) = tracked.statuses.next().await {
            let status = match next {
                Ok(status) => status,
                // The stream goes on.
                Err(error) if error.is_transient() => continue,
                Err(error) => return Ok(Err(shown(&error))),
            };
            ensure!(operation == "track.until", "it goes on: {status:?}");
            if let Some(last) = tracked.last.replace(status.clone()) {
                let position = |status: &StatusReply| status.position.unwrap_or_default();
                let grows = last.position.is_some() && position(&status) > position(&last);
                ensure!(
                    last.lane != status.lane || !grows,
                    "the position grows: {last:?}, {status:?}"
                );
            }
            let status = serde_json::to_value(status)?;
            if matcher::check(&args["until"], &status, "").is_ok() {
                return Ok(Ok(status));
            }
        }
        ensure!(
            operation == "track.end",
            "the tracker has ended with {:?}",
            tracked.last
        );
        Ok(Ok(Value::Null))
    }

    async fn guard(&mut self, what: &str, line: Line, args: &Value) -> Result<Came> {
        let name = text(args, "name")?;
        let no_slot = || format!("{name} has no slot");
        match what {
            "begin" => self.ask(name, line, args),
            "acquire" => {
                self.ask(name, line, args);
                return self.awaited(name).await;
            }
            "await" => return self.awaited(name).await,
            "abandon" => {
                let asking = self.asking.remove(name).context("it has not asked")?;
                asking.abort();
            }
            "release" => {
                let slot = self.slots.remove(name).with_context(no_slot)?;
                slot.release().await;
            }
            "lost" => self.slots.get(name).with_context(no_slot)?.lost().await,
            _ => bail!("guard.{what} is unknown"),
        }
        Ok(Ok(Value::Null))
    }

    fn ask(&mut self, name: &str, line: Line, args: &Value) {
        let guard = self.guard.get_or_insert_with(|| {
            let mut options = GuardOptions::default();
            options.patience = PATIENCE;
            Guard::new(line, options)
        });
        let guard = guard.clone();
        let mut ask = Ask::default();
        if let Some(ms) = args["max_wait_ms"].as_u64() {
            ask = ask.max_wait(Duration::from_millis(ms));
        }
        let asking = tokio::spawn(async move { guard.acquire(ask).await });
        self.asking.insert(name.to_owned(), asking);
    }

    async fn awaited(&mut self, name: &str) -> Result<Came> {
        let asking = self.asking.remove(name).context("it has not asked")?;
        let refused = match asking.await? {
            Ok(slot) => {
                let epoch = json!({"epoch": slot.epoch()});
                self.slots.insert(name.to_owned(), slot);
                return Ok(Ok(epoch));
            }
            Err(refused) => refused,
        };
        let code = match &refused {
            Refused::Full { .. } => "line_full",
            Refused::WaitedTooLong { .. } => "waited_too_long",
            Refused::Closed => "line_closed",
            Refused::Removed { .. } => "removed",
            Refused::Unavailable => "unavailable",
            other => bail!("refused: {other}"),
        };
        let retry_after_ms = refused.retry_after().map(|it| it.as_millis() as u64);
        Ok(Err(json!({
            "code": code,
            "message": refused.to_string(),
            "retry_after_ms": retry_after_ms,
        })))
    }
}

/// An operation on a line.
async fn call(line: &Line, operation: &str, args: &Value) -> Result<Came> {
    let ticket = || text(args, "ticket");
    let key = || text(args, "key");
    match operation {
        "enter" => {
            let key = Key::new(key()?.as_bytes().to_vec()).context("a key")?;
            let lane = args["lane"].as_str().map(LaneName::try_from).transpose()?;
            came(line.enter_with(Some(key), lane).await)
        }
        "find" => came(line.find(key()?).await),
        "status" => came(line.status(ticket()?).await),
        "claim" => came(line.claim(ticket()?).await),
        "renew" => came(line.renew(ticket()?, number(args, "epoch")?).await),
        "complete" => {
            let units = args["units"].as_u64().map(u32::try_from).transpose()?;
            came(
                line.complete(ticket()?, args["epoch"].as_u64(), units)
                    .await,
            )
        }
        "leave" => came(line.leave(ticket()?).await),
        "jump" => {
            let token = TokenBy::Ticket(ticket()?.to_owned());
            came(
                line.jump(token, LaneName::try_from(text(args, "to")?)?)
                    .await,
            )
        }
        "seen" => {
            let tickets = serde_json::from_value(args["tickets"].clone())?;
            came(line.seen(tickets).await)
        }
        "info" => came(line.info().await),
        _ => bail!("{operation} is unknown"),
    }
}

fn shard(operation: &str, args: &Value) -> Result<Option<u32>> {
    let shards = || anyhow::Ok(u32::try_from(number(args, "shards")?)?);
    Ok(match operation {
        "shard_of_line" => Some(shard_of(text(args, "line")?, shards()?)),
        "shard_of_check" => {
            let domain = LineName::try_from(text(args, "domain")?)?;
            let descriptor: Vec<Entry> = serde_json::from_value(args["descriptor"].clone())?;
            Some(limit_shard_of(&domain, &descriptor, shards()?))
        }
        _ => None,
    })
}

/// The fields of one over those that the scenario has for all of its kind.
fn laid_over<T: DeserializeOwned>(common: &Value, args: &Value, kind: &str) -> Result<T> {
    let fields = |of: &Value| of[kind].as_object().cloned();
    let mut all = fields(common).unwrap_or_default();
    all.extend(fields(args).with_context(|| format!("no {kind}"))?);
    Ok(serde_json::from_value(all.into())?)
}

fn came<T: Serialize>(result: nowserving_client::Result<T>) -> Result<Came> {
    Ok(match result {
        Ok(reply) => Ok(serde_json::to_value(reply)?),
        Err(error) => Err(shown(&error)),
    })
}

fn shown(error: &Error) -> Value {
    json!({
        "code": error.kind().to_string(),
        "message": error.message(),
        "retry_after_ms": error.retry_after().map(|it| it.as_millis() as u64),
        "reason": error.api().and_then(|api| api.reason.clone()),
        "may_have_happened": error.may_have_happened(),
    })
}

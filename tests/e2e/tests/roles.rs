//! The roles of deploy/nats: their rights are those of the table in docs/security.md, and a NATS server grants each role
//! just these.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use async_nats::{ConnectOptions, Event, ServerError};
use nowserving_e2e::{Nats, PASSWORD};
use nowserving_line::LineName;
use nowserving_protocol::operation::{Effect, On, Operation};
use nowserving_protocol::rights::{Action, MissingRight};
use nowserving_protocol::subject::Subjects;
use tokio::sync::mpsc;

const PATIENCE: Duration = Duration::from_secs(10);
/// Who may do everything in the account, and who may ask but not listen.
const MORE_USERS: &str = r#"users: [
  { user: "tests", password: $NATS_TESTS_PASSWORD }
  { user: "mute", password: $NATS_MUTE_PASSWORD, permissions: { subscribe: ["_INBOX.>"] } }"#;

/// A file of deploy/nats.
fn file(name: &str) -> Result<String> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/nats");
    let path = Path::new(folder).join(name);
    std::fs::read_to_string(&path).with_context(|| path.display().to_string())
}

/// `server.conf` with the files that it includes, without the addresses on which it listens. `users` takes the place of
/// `users.conf`; without `tls`, the folder of certificates, it does not encrypt.
fn inlined(name: &str, users: &str, tls: Option<&Path>) -> Result<String> {
    let mut text = String::new();
    for line in file(name)?.lines() {
        let included = line.trim().strip_prefix("include \"");
        match included.map(|rest| rest.trim_end_matches('"')) {
            Some("tls.conf") if tls.is_none() => {}
            Some("users.conf") => text += &inlined(users, users, tls)?,
            Some(other) => text += &inlined(other, users, tls)?,
            None if line.starts_with("listen:") || line.starts_with("http:") => {}
            None => text = text + line + "\n",
        }
    }
    Ok(match tls {
        Some(folder) => text.replace("/etc/nats/tls", &folder.display().to_string()),
        None => text,
    })
}

/// Puts the values in place of the variables of the server's environment.
fn filled(text: &str, value: impl Fn(&str) -> String) -> String {
    let mut parts = text.split("$NATS_");
    let mut filled = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let is_end = |c: char| !c.is_ascii_uppercase() && c != '_';
        let (name, rest) = part.split_at(part.find(is_end).unwrap_or(part.len()));
        filled += &format!("{:?}{rest}", value(name));
    }
    filled
}

/// The configuration as shipped, for the harness: every password is [`PASSWORD`], and users `tests` and `mute` are added.
pub fn as_shipped(tls: Option<&Path>) -> Result<String> {
    let text = inlined("server.conf", "users.conf", tls)?.replacen("users: [", MORE_USERS, 1);
    Ok(filled(&text, |_| PASSWORD.to_owned()))
}

/// The same with nkeys instead of passwords. `public_key`: that of a role, in upper case.
pub fn with_nkeys(public_key: impl Fn(&str) -> String) -> Result<String> {
    let text = inlined("server.conf", "users-nkeys.conf", None)?;
    Ok(filled(&text, |name| match name.strip_suffix("_NKEY") {
        Some(role) => public_key(role),
        None => PASSWORD.to_owned(),
    }))
}

/// The subjects that a role may publish, those that it may not, and those that it may subscribe to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rights {
    pub publish: [BTreeSet<String>; 2],
    pub subscribe: BTreeSet<String>,
}

/// The table in docs/security.md. A row without a role continues the row above.
fn of_the_table() -> Result<BTreeMap<String, Rights>> {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/security.md");
    let page = std::fs::read_to_string(page)?;
    let table = page.lines().map(str::trim);
    let table = table.skip_while(|line| !line.starts_with("| who | publishes | subscribes |"));
    let rows = table.skip(2).take_while(|line| line.starts_with('|'));
    let mut roles: BTreeMap<String, Rights> = BTreeMap::new();
    let mut before = BTreeSet::new();
    let mut role = String::new();
    for row in rows {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [who, publish, subscribe] = cells[..] else {
            continue;
        };
        if who.is_empty() {
            let rights = roles.get_mut(&role).context("a row without a role")?;
            rights.publish[0].extend(in_ticks(publish));
            rights.subscribe.extend(in_ticks(subscribe));
            continue;
        }
        who.clone_into(&mut role);
        let mut allowed = in_ticks(publish);
        if publish.starts_with("the same") {
            allowed.extend(before);
        }
        before = allowed.clone();
        let nothing = allowed.is_empty().then(|| ">".to_owned());
        let rights = Rights {
            publish: [allowed, nothing.into_iter().collect()],
            subscribe: in_ticks(subscribe),
        };
        roles.insert(role.clone(), rights);
    }
    Ok(roles)
}

fn in_ticks(cell: &str) -> BTreeSet<String> {
    let subjects = cell.split('`').skip(1).step_by(2);
    subjects.map(str::to_owned).collect()
}

/// `roles.conf`.
fn of_the_file() -> Result<BTreeMap<String, Rights>> {
    let text = file("roles.conf")?;
    let mut roles = BTreeMap::new();
    for block in text.split("\nrole_").skip(1) {
        let (name, block) = block.split_once(" = {").context("a block")?;
        let (block, _) = block.split_once("\n}").context("the end of a block")?;
        let (publish, subscribe) = block.split_once("subscribe:").context("both rights")?;
        // A wildcard that overlaps a denied subject would go through.
        ensure!(!subscribe.contains("deny"), "{name} denies a subscription");
        let rights = Rights {
            publish: ["allow: [", "deny: ["].map(|begin| quoted_after(publish, begin)),
            subscribe: quoted_after(subscribe, "allow: ["),
        };
        roles.insert(name.replace('_', "-"), rights);
    }
    Ok(roles)
}

/// The quoted words of the list that begins so.
fn quoted_after(text: &str, begin: &str) -> BTreeSet<String> {
    let list = text.split_once(begin).map_or("", |(_, list)| list);
    let list = list.split(']').next().unwrap_or_default();
    let words = list.split('"').skip(1).step_by(2);
    words.map(str::to_owned).collect()
}

/// The table and the configuration say the same.
pub fn are_those_of_the_table() -> Result<()> {
    let (table, file) = (of_the_table()?, of_the_file()?);
    ensure!(table.len() == 11, "{:?}", table.keys());
    for (role, rights) in &table {
        ensure!(file.get(role) == Some(rights), "{role}: {rights:?}");
    }
    ensure!(file.len() == table.len(), "{:?}", file.keys());
    Ok(())
}

/// The rights follow the operations as the table of them in `protocol` has them: operators may send all, backends those of
/// users, auditors only reads. A role may send an operation by all of its subjects or by none, and each right is of one.
pub fn follow_the_operations() -> Result<()> {
    let of_clients = |op: &Operation| op.on() != On::LimitLeader;
    let all: Vec<_> = Operation::all().filter(of_clients).collect();
    let mut subjects = Vec::new();
    // Some rights are for one bucket.
    for name in ["a", "notices"] {
        let name = LineName::try_from(name)?;
        subjects.extend(all.iter().map(|op| (*op, subjects_of(*op, &name))));
    }
    for (role, Rights { publish, .. }) in of_the_file()? {
        let may = |subject: &String| publish[0].iter().any(|right| covers(right, subject));
        for (op, subjects) in &subjects {
            let allowed = subjects.iter().filter(|it| may(it)).count();
            ensure!(
                [0, subjects.len()].contains(&allowed),
                "{role}: half of {op}"
            );
            let fits = match &*role {
                "nodes" | "operators" => allowed > 0,
                "backends" => (allowed > 0) != op.is_admin(),
                "auditors" => allowed == 0 || op.effect() == Effect::Read,
                _ => true,
            };
            ensure!(fits, "{role} and {op}: {allowed} subjects");
        }
        for right in publish[0].iter().filter(|it| it.starts_with("nowserving.")) {
            let of = |(_, all): &(Operation, Vec<String>)| all.iter().any(|it| covers(right, it));
            ensure!(
                subjects.iter().any(of),
                "{role}: {right} is of no operation"
            );
        }
    }
    Ok(())
}

/// By which clients send it.
fn subjects_of(op: Operation, name: &LineName) -> Vec<String> {
    let subjects = Subjects::default();
    let plain = subjects.plain(op, name);
    match op.on() {
        On::Cluster | On::Members | On::AdminLimit => vec![plain],
        On::LimitShard => vec![subjects.leader(op, 0, name)],
        _ => vec![plain, subjects.leader(op, 0, name)],
    }
}

/// Whether this subject, which may have wildcards, has the other one.
fn covers(right: &str, subject: &str) -> bool {
    let mut words = subject.split('.');
    for right in right.split('.') {
        match (right, words.next()) {
            (">", Some(_)) => return true,
            (_, Some(word)) if right == "*" || right == word => {}
            _ => return false,
        }
    }
    words.next().is_none()
}

/// The permissions of a role as they stand in a user's JWT.
pub fn permissions_of(role: &str) -> Result<Rights> {
    of_the_file()?.remove(role).with_context(|| role.to_owned())
}

const ALL: &str =
    "nodes backends operators auditors capacity dispatchers key-values limits edges gateways";

/// Who may publish to a subject.
const PUBLISH: [(&str, &str); 36] = [
    (
        "nowserving.line.a.enter",
        "nodes backends operators gateways",
    ),
    (
        "nowserving.line.a.claim",
        "nodes backends operators gateways",
    ),
    ("nowserving.line.a.find", "nodes backends operators"),
    ("nowserving.line.a.jump", "nodes backends operators"),
    (
        "nowserving.line.a.info",
        "nodes backends operators auditors gateways",
    ),
    (
        "nowserving.shard.0.b.enter",
        "nodes backends operators gateways",
    ),
    ("nowserving.kv.b.put", "nodes backends operators key-values"),
    (
        "nowserving.kv.b.list",
        "nodes backends operators key-values",
    ),
    (
        "nowserving.shard.0.kv.b.put",
        "nodes backends operators key-values",
    ),
    ("nowserving.kv.b.get", "nodes backends operators key-values"),
    (
        "nowserving.kv.notices.get",
        "nodes backends operators key-values gateways",
    ),
    (
        "nowserving.shard.0.kv.notices.get",
        "nodes backends operators key-values gateways",
    ),
    (
        "nowserving.kv.notices.put",
        "nodes backends operators key-values",
    ),
    (
        "nowserving.limit.d.check",
        "nodes backends operators limits gateways",
    ),
    (
        "nowserving.leader.0.limit.d.check",
        "nodes backends operators limits gateways",
    ),
    ("nowserving.admin.line.a.show", "nodes operators auditors"),
    (
        "nowserving.admin.line.a.journal",
        "nodes operators auditors",
    ),
    (
        "nowserving.admin.line.a.list_tokens",
        "nodes operators auditors dispatchers",
    ),
    ("nowserving.admin.line.a.configure", "nodes operators"),
    ("nowserving.admin.line.a.kick", "nodes operators"),
    ("nowserving.admin.line.a.backup", "nodes operators"),
    (
        "nowserving.admin.line.a.capacity_told",
        "nodes operators capacity",
    ),
    (
        "nowserving.admin.line.a.call_next",
        "nodes operators dispatchers",
    ),
    (
        "nowserving.admin.cluster.status",
        "nodes operators auditors",
    ),
    (
        "nowserving.admin.cluster.jwks",
        "nodes operators auditors edges gateways",
    ),
    ("nowserving.admin.cluster.remove_node", "nodes operators"),
    ("nowserving.admin.cluster.rotate_key", "nodes operators"),
    ("nowserving.admin.limit.show", "nodes operators auditors"),
    ("nowserving.admin.limit.apply", "nodes operators"),
    ("nowserving.admin.kv.b.restore", "nodes operators"),
    ("nowserving.forward.admin.shard.0.a.configure", "nodes"),
    ("nowserving.raft.c.1.2", "nodes"),
    ("nowserving.raft.join", "nodes"),
    ("nowserving.event.a.board", "nodes"),
    ("_INBOX.somebody.1", "nodes"),
    ("$SRV.INFO.nowserving", ALL),
];

/// Who may subscribe to a subject.
const SUBSCRIBE: [(&str, &str); 29] = [
    (
        "nowserving.event.a.board",
        "nodes backends operators auditors gateways push-services",
    ),
    (
        "nowserving.event.a.token.main.1",
        "nodes backends operators auditors edges gateways push-services",
    ),
    (
        "nowserving.event.a.token.*.*",
        "nodes backends operators auditors edges gateways push-services",
    ),
    (
        "nowserving.event.a.line",
        "nodes backends operators auditors edges gateways push-services",
    ),
    (
        "nowserving.event.kv.b.0",
        "nodes backends operators auditors key-values",
    ),
    (
        "nowserving.event.kv.notices.*",
        "nodes backends operators auditors key-values gateways",
    ),
    // These overlap the events of key-values.
    ("nowserving.event.>", "nodes backends operators auditors"),
    (
        "nowserving.event.*.b.*",
        "nodes backends operators auditors",
    ),
    (
        "nowserving.event.*.b.>",
        "nodes backends operators auditors",
    ),
    (
        "nowserving.event.*.token.>",
        "nodes backends operators auditors",
    ),
    (
        "nowserving.event.*.board.>",
        "nodes backends operators auditors",
    ),
    ("nowserving.line.>", "nodes"),
    ("nowserving.shard.0.>", "nodes"),
    ("nowserving.admin.>", "nodes"),
    ("nowserving.forward.>", "nodes"),
    ("nowserving.raft.>", "nodes"),
    ("_INBOX.backends.a.*", "nodes backends"),
    ("_INBOX.operators.a.*", "nodes operators"),
    ("_INBOX.auditors.a.*", "nodes auditors"),
    ("_INBOX.capacity.a.*", "nodes capacity"),
    ("_INBOX.dispatchers.a.*", "nodes dispatchers"),
    ("_INBOX.key-values.a.*", "nodes key-values"),
    ("_INBOX.limits.a.*", "nodes limits"),
    ("_INBOX.edges.a.*", "nodes edges"),
    ("_INBOX.gateways.a.*", "nodes gateways"),
    ("_INBOX.a.*", "nodes"),
    ("$SRV.INFO", "nodes"),
    ("$SYS.>", ""),
    (">", ""),
];

/// Each role against each subject, in both directions.
pub async fn do_just_what_they_should() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let nats = Nats::start(folder.path(), None, &as_shipped(None)?).await?;
    for role in of_the_file()?.keys() {
        let denied = denied(&nats, role).await?;
        for (actions, action) in [
            (&PUBLISH[..], Action::Publish),
            (&SUBSCRIBE[..], Action::Subscribe),
        ] {
            for (subject, may) in actions {
                let expected = !may.split(' ').any(|who| who == role);
                let found = denied.iter().any(|missing| match action {
                    Action::Publish => missing.forbids_sending_to(subject),
                    Action::Subscribe => missing.action == action && missing.subject == *subject,
                });
                ensure!(
                    found == expected,
                    "{role}: {action:?} {subject}: denied is {found}"
                );
            }
        }
    }
    Ok(())
}

/// What the server denies to a role of all that is listed.
async fn denied(nats: &Nats, role: &str) -> Result<Vec<MissingRight>> {
    let (found, mut missing) = mpsc::unbounded_channel();
    let options = ConnectOptions::with_user_and_password(role.to_owned(), PASSWORD.to_owned());
    let options = options.event_callback(move |event| {
        if let Event::ServerError(ServerError::Other(text)) = event
            && let Some(right) = MissingRight::parse(&text)
        {
            let _ = found.send(right);
        }
        async {}
    });
    let client = options.connect(nats.url()).await?;
    let mut subscribers = Vec::new();
    for (subject, _) in SUBSCRIBE {
        subscribers.push(client.subscribe(subject).await?);
    }
    for (subject, _) in PUBLISH {
        client.publish(subject, "".into()).await?;
    }
    // The server answers in order, and nobody may send this.
    let last = "nobody.may.send.this";
    client.publish(last, "".into()).await?;
    let mut denied = Vec::new();
    loop {
        let right = tokio::time::timeout(PATIENCE, missing.recv()).await?;
        let right = right.context("the connection is closed")?;
        if right.subject == last {
            return Ok(denied);
        }
        denied.push(right);
    }
}

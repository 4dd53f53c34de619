//! Helpers of the examples: a connection, a new line, the turn of a token, the next event, a journal.

mod archivist;

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use futures::StreamExt;
use nowserving_client::{
    AdminLine, Client, Code, Configure, Create, Delete, EventStream, Journal, JournalEntryReply,
    Line, LineEvent, State, StatusReply,
};
use serde_json::Value;

pub use archivist::Archivist;

/// No step of a story takes longer.
const PATIENCE: Duration = Duration::from_secs(30);

/// Connects to the NATS server of the first argument, by default one on this machine.
pub async fn connect() -> Result<Client> {
    let url = std::env::args().nth(1);
    let url = url.unwrap_or_else(|| "nats://127.0.0.1:4222".to_owned());
    Ok(Client::connect(&url).await?)
}

/// Creates a line with these settings. One that an earlier run left behind is deleted first.
pub async fn make(client: &Client, name: &str, settings: Value) -> Result<(Line, AdminLine)> {
    let admin = client.admin().line(name)?;
    delete(&admin).await?;
    let settings: Create = serde_json::from_value(settings)?;
    admin.create(&settings).await?;
    Ok((client.line(name)?, admin))
}

/// Deletes a line with all its tokens, and returns once it is gone.
pub async fn delete(admin: &AdminLine) -> Result<()> {
    let force = Delete {
        force: true,
        ..Delete::default()
    };
    loop {
        match admin.delete(&force).await {
            Err(error) if error.code() == Some(Code::LineNotFound) => return Ok(()),
            Err(error) => return Err(error.into()),
            // Many tokens take a while to end.
            Ok(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

/// Changes settings.
pub async fn configure(admin: &AdminLine, settings: Value) -> Result<()> {
    let changes: Configure = serde_json::from_value(settings)?;
    admin.configure(&changes).await?;
    Ok(())
}

/// Watches a token until it no longer waits.
pub async fn turn(line: &Line, ticket: &str) -> Result<StatusReply> {
    let mut track = line.track(ticket);
    let watch = async {
        while let Some(status) = track.next().await {
            match status {
                Ok(status) if status.state != State::Waiting => return Ok(status),
                Err(error) if !error.is_transient() => return Err(error.into()),
                // It still waits, or a request failed and is made again.
                _ => {}
            }
        }
        bail!("the token was followed to no end")
    };
    let turn = tokio::time::timeout(PATIENCE, watch).await;
    turn.context("its turn does not come")?
}

/// Asks until the answer is yes.
pub async fn eventually(what: &str, mut is_so: impl AsyncFnMut() -> Result<bool>) -> Result<()> {
    let ask = async {
        while !is_so().await? {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    };
    let asked = tokio::time::timeout(PATIENCE, ask).await;
    asked.with_context(|| format!("not so: {what}"))?
}

/// The next event of this kind. Others that come before it are passed over.
pub async fn event(events: &mut EventStream<LineEvent>, kind: &str) -> Result<LineEvent> {
    let wait = async {
        while let Some(event) = events.next().await {
            let event = event?;
            if event.event == kind {
                return Ok(event);
            }
        }
        bail!("the events have ended")
    };
    let event = tokio::time::timeout(PATIENCE, wait).await;
    event.with_context(|| format!("no event {kind}"))?
}

/// The keys that the next event `room` names.
pub async fn room(events: &mut EventStream<LineEvent>) -> Result<Vec<String>> {
    let keys = event(events, "room").await?.keys.unwrap_or_default();
    let text = |key: &nowserving_client::Key| String::from_utf8_lossy(key.as_bytes()).into_owned();
    Ok(keys.iter().map(text).collect())
}

/// The ticket of a token that has just entered.
pub fn ticket(status: &StatusReply) -> Result<&str> {
    status.ticket.as_deref().context("a reply without a ticket")
}

/// The whole journal of a line, oldest entry first.
pub async fn journal(admin: &AdminLine) -> Result<Vec<JournalEntryReply>> {
    let mut entries = Vec::new();
    let mut page = Journal::default();
    loop {
        let reply = admin.journal(&page).await?;
        entries.extend(reply.entries);
        page.after = reply.next;
        if page.after.is_none() {
            return Ok(entries);
        }
    }
}

/// Checks that a call was refused with this code.
pub fn refused<T>(result: nowserving_client::Result<T>, code: Code) -> Result<()> {
    match result {
        Ok(_) => bail!("it was not refused, but should have been: {code}"),
        Err(error) => ensure!(error.code() == Some(code), "{error}, not {code}"),
    }
    Ok(())
}

//! A day of a ride-hailing queue.
//!
//! A city is divided into hives. Each hive has a line for each type of vehicle; its seats are the drivers that
//! are free there. Riders wait in lanes: normal, from a partner's channel, with priority, and absolute (before
//! all others). The app of a rider knows only the order number: it is the key. A driver takes the next rider; the
//! seat is free again at the end of the ride. For vans a dispatcher decides when and who. Riders that are not heard of
//! are ended by force, and the day goes into an archive.
//!
//! Run it with the URL of the cluster's NATS server, and a file for the archive. It checks each step, and fails if one
//! goes wrong.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use nowserving_client::{
    AdminLine, CallNext, CalledReply, Client, Code, Journal, JournalEntryReply, Key, Kick,
    LaneName, Line, OperatorNote, State, StatusReply, Take, TokenBy,
};
use nowserving_examples::{
    Archivist, configure, connect, delete, eventually, journal, make, refused, ticket, turn,
};
use serde_json::{Value, json};

const ECONOMY: &str = "hive-7-economy";
const COMFORT: &str = "hive-7-comfort";
const VAN: &str = "hive-7-van";
const ZONE: &str = "Asia/Taipei";

/// One type of vehicle in one hive.
struct Queue {
    line: Line,
    admin: AdminLine,
    /// The rides in progress, by the order in which they began: the ticket and the fencing number of each.
    rides: VecDeque<(String, Option<u64>)>,
}

#[tokio::main]
async fn main() -> Result<()> {
    let client = connect().await?;
    let file = std::env::args().nth(2).map(PathBuf::from);
    let file = file.unwrap_or_else(|| std::env::temp_dir().join("hive-7.jsonl"));
    let archivist = Archivist::start(&client, &[ECONOMY, COMFORT, VAN], &file).await?;
    let today = Timestamp::now().to_zoned(TimeZone::get(ZONE)?).date();

    let mut economy = Queue::open(&client, ECONOMY, settings("economy", 2)).await?;
    let mut comfort = Queue::open(&client, COMFORT, settings("comfort", 1)).await?;
    println!("Morning in hive 7: two economy drivers are free, and one comfort driver.");
    rush_hour(&mut economy).await?;
    println!("Order 4 also asks for a comfort car, gets it, and leaves the economy queue.");
    comfort.order(4, "normal").await?;
    comfort.pick_up(4).await?;
    economy.leave(4).await?;
    in_their_turn(&mut economy).await?;

    let mut called = settings("van", 2);
    called["admission"] = json!("called");
    let mut van = Queue::open(&client, VAN, called).await?;
    dispatcher(&mut van).await?;
    overtaken(&van).await?;
    forced_exit(&economy, &van).await?;

    for queue in [&mut economy, &mut comfort, &mut van] {
        while !queue.rides.is_empty() {
            queue.drop_off().await?;
        }
    }
    books(&economy).await?;
    for queue in [economy, comfort, van] {
        delete(&queue.admin).await?;
    }
    archivist.end().await?;
    let file = file.display();
    println!("The day: nowserving archive report {file} --day {today} --zone {ZONE} --tokens");
    Ok(())
}

fn settings(vehicle: &str, drivers: u32) -> Value {
    json!({
        "seats": drivers,
        "queue_limit": 1_000,
        "labels": {"city": "kaohsiung", "hive": "7", "vehicle": vehicle},
        // An app shows no place past the third: the position ends there, the order does not.
        "position_cap": 3,
        "lanes": [
            {"name": "normal"},
            {"name": "channel", "boost_ms": 60_000},
            {"name": "priority", "boost_ms": 300_000, "jump": true},
            {"name": "absolute", "absolute": true},
        ],
        "default_lane": "normal",
        "waiting_idle_timeout_ms": 60_000,
        // The archive names orders, not only tokens.
        "event_key": true,
    })
}

/// More orders come in than there are drivers.
async fn rush_hour(economy: &mut Queue) -> Result<()> {
    for order in 1..=6 {
        economy.order(order, "normal").await?;
    }
    for order in [1, 2] {
        economy.pick_up(order).await?;
    }
    println!("Orders 1 to 6 come in. The drivers take orders 1 and 2.");
    ensure!(economy.place(3).await? == "1" && economy.place(6).await? == "3+");
    println!("The app of order 3 shows place 1, that of order 6 shows 3+.");
    for (order, lane) in [(7, "channel"), (8, "priority"), (9, "absolute")] {
        economy.order(order, lane).await?;
    }
    println!("Order 7 comes through a partner's channel, 8 with priority, 9 from a hospital.");
    let (card, priority, absolute) = (by_key(6)?, lane("priority")?, lane("absolute")?);
    refused(
        economy.line.jump(card.clone(), absolute).await,
        Code::Forbidden,
    )?;
    economy.line.jump(card, priority).await?;
    ensure!(economy.place(6).await? == "2", "behind order 8");
    println!("The rider of order 6 has a card and jumps into the priority lane, behind order 8.");
    Ok(())
}

/// Each driver that becomes free takes the next rider: absolute first, then by time with the boosts.
async fn in_their_turn(economy: &mut Queue) -> Result<()> {
    for order in [9, 8, 6, 7] {
        economy.drop_off().await?;
        let next = turn(&economy.line, &economy.ticket(order).await?).await?;
        ensure!(next.state == State::Admitted, "{next:?}");
        println!(
            "A driver is free and takes order {order}, lane {}.",
            next.lane
        );
        economy.pick_up(order).await?;
    }
    // Why did others go before order 7, which came before them?
    let why = economy.overtakers("channel", 1).await?;
    println!("Before order 7 went, of those who came later: {why:?}.");
    ensure!(why["absolute"] == "absolute" && why["priority"] == "boost");
    Ok(())
}

/// Nobody gets a van that the dispatcher does not call: the next rider, or one whose luggage fits.
async fn dispatcher(van: &mut Queue) -> Result<()> {
    for (order, lane) in [
        (21, "normal"),
        (22, "normal"),
        (23, "normal"),
        (24, "priority"),
    ] {
        let waits = van.order(order, lane).await?;
        ensure!(waits.state == State::Waiting, "{waits:?}");
    }
    println!("Orders 21 to 24 ask for vans. Two are free, and stand until the dispatcher calls.");
    let first = van.call(1, "morning-1").await?;
    ensure!(first == [24], "{first:?}");
    // The answer was lost, perhaps: the same call calls nobody else.
    ensure!(van.call(1, "morning-1").await? == first);
    println!("The dispatcher calls the next one. It is order 24, with priority.");
    let by_luggage = Take {
        key: Some(Key::new(key(23).into_bytes())?),
        ..Take::default()
    };
    let taken = van.admin.take(&by_luggage).await?;
    ensure!(orders(&taken)? == [23] && van.place(22).await? == "2");
    println!(
        "The other van has room for the luggage of order 23: the dispatcher takes it out of order."
    );
    let none = van.call(2, "morning-2").await?;
    ensure!(none.is_empty(), "no van is free: {none:?}");

    for order in [24, 23] {
        van.pick_up(order).await?;
    }
    van.drop_off().await?;
    let next = van.line.status_by_key(key(21)).await?;
    ensure!(next.state == State::Waiting, "nobody has called: {next:?}");
    let next = van.call(2, "morning-3").await?;
    ensure!(next == [21], "one van is free: {next:?}");
    van.pick_up(21).await?;
    println!("A van comes back. It is free until the dispatcher calls: for order 21.");
    Ok(())
}

/// The first of the normal lane asks why others went before it.
async fn overtaken(van: &Queue) -> Result<()> {
    let why = van.overtakers("normal", 1).await?;
    println!("Before order 21 went, of those who came later: {why:?}.");
    ensure!(why["normal"] == "take" && why["priority"] == "boost");
    Ok(())
}

/// Orders whose state has not changed for too long leave the queue by force.
async fn forced_exit(economy: &Queue, van: &Queue) -> Result<()> {
    configure(&van.admin, json!({"max_wait_ms": 1_000})).await?;
    let gone = turn(&van.line, &van.ticket(22).await?).await?;
    ensure!(gone.reason.as_deref() == Some("wait_expired"), "{gone:?}");
    println!("No van for order 22 in the longest time that a rider may wait: it goes.");

    // Only those are hit whose apps have not asked for so long.
    let mut silent = json!({"idle_over_ms": 500, "dry_run": true});
    eventually("the apps of two orders are silent", async || {
        let counted = economy.kick(&silent).await?;
        Ok(counted == 2)
    })
    .await?;
    silent["dry_run"] = json!(false);
    let kick: Kick = serde_json::from_value(silent)?;
    let note = OperatorNote {
        by: Some("operations".into()),
        reason: Some("no driver, no word".into()),
    };
    ensure!(economy.admin.with_note(note)?.kick(&kick).await?.kicked == 2);
    for order in [3, 5] {
        refused(economy.line.find(key(order)).await, Code::TokenNotFound)?;
    }
    println!("The apps of orders 3 and 5 are silent. Operations ends both, and says why.");
    Ok(())
}

/// The day as the line's own journal has it: how the orders of each lane ended, and what operations did.
async fn books(economy: &Queue) -> Result<()> {
    let mut day = BTreeMap::<(String, String), u32>::new();
    let mut notes = Vec::new();
    for entry in journal(&economy.admin).await? {
        let JournalEntryReply {
            what,
            lane,
            reason,
            by,
            ..
        } = entry;
        match lane {
            Some(lane) => {
                let what = reason.unwrap_or(what);
                *day.entry((lane.to_string(), what)).or_default() += 1;
            }
            None if what == "kicked" => notes.push((reason, by)),
            None => {}
        }
    }
    println!("The books of hive 7, economy:");
    for ((lane, what), many) in &day {
        println!("  {lane:8}  {what:12}  {many}");
    }
    let many = |lane: &str, what: &str| day.get(&(lane.to_owned(), what.to_owned())).copied();
    ensure!(many("normal", "entered") == Some(6) && many("normal", "completed") == Some(2));
    ensure!(many("normal", "moved") == Some(1) && many("normal", "left") == Some(1));
    ensure!(many("normal", "kicked") == Some(2));
    ensure!(many("priority", "entered") == Some(1) && many("priority", "completed") == Some(2));
    for lane in ["channel", "absolute"] {
        ensure!(many(lane, "entered") == Some(1) && many(lane, "completed") == Some(1));
    }
    let note = |text: &str| Some(text.to_owned());
    ensure!(notes == [(note("no driver, no word"), note("operations"))]);
    Ok(())
}

impl Queue {
    async fn open(client: &Client, name: &str, settings: Value) -> Result<Self> {
        let (line, admin) = make(client, name, settings).await?;
        Ok(Self {
            line,
            admin,
            rides: VecDeque::new(),
        })
    }

    async fn order(&self, order: u32, lane: &str) -> Result<StatusReply> {
        let lane = Some(self::lane(lane)?);
        let key = Key::new(key(order).into_bytes())?;
        Ok(self.line.enter_with(Some(key), lane).await?)
    }

    /// The ticket of an order.
    async fn ticket(&self, order: u32) -> Result<String> {
        let found = self.line.find(key(order)).await?;
        Ok(ticket(&found)?.to_owned())
    }

    /// What the app shows: the place in the lane.
    async fn place(&self, order: u32) -> Result<String> {
        let status = self.line.status_by_key(key(order)).await?;
        let position = status.position.context("it does not wait")?;
        let more = if status.position_capped { "+" } else { "" };
        Ok(format!("{position}{more}"))
    }

    async fn leave(&self, order: u32) -> Result<()> {
        self.line.leave(&self.ticket(order).await?).await?;
        Ok(())
    }

    /// A driver is on the way to this rider, whose turn it is.
    async fn pick_up(&mut self, order: u32) -> Result<()> {
        let ticket = self.ticket(order).await?;
        let claimed = self.line.claim(&ticket).await?;
        self.rides.push_back((ticket, claimed.epoch));
        Ok(())
    }

    /// The ride that began first is over: its driver is free.
    async fn drop_off(&mut self) -> Result<()> {
        let (ticket, epoch) = self.rides.pop_front().context("nobody rides")?;
        self.line.complete(&ticket, epoch, None).await?;
        Ok(())
    }

    /// Calls the next `n` riders. Gives their orders.
    async fn call(&self, n: u32, call_id: &str) -> Result<Vec<u32>> {
        let next = CallNext {
            n,
            lane: None,
            call_id: call_id.to_owned(),
        };
        orders(&self.admin.call_next(&next).await?)
    }

    /// Ends riders by force, or counts them.
    async fn kick(&self, selected: &Value) -> Result<u64> {
        let kick: Kick = serde_json::from_value(selected.clone())?;
        Ok(self.admin.kick(&kick).await?.kicked)
    }

    /// By lane: why riders who came later went before this one.
    async fn overtakers(&self, lane: &str, token: u64) -> Result<BTreeMap<String, String>> {
        let page = Journal {
            lane: Some(self::lane(lane)?),
            token: Some(token),
            ..Journal::default()
        };
        let explained = self.admin.journal(&page).await?.explain;
        let overtakers = explained.context("no explanation")?.overtakers;
        let why = overtakers.into_iter();
        Ok(why.map(|it| (it.lane.to_string(), it.by)).collect())
    }
}

fn key(order: u32) -> String {
    format!("order-{order}")
}

/// By what the app knows.
fn by_key(order: u32) -> Result<TokenBy> {
    Ok(TokenBy::Key(Key::new(key(order).into_bytes())?))
}

/// The orders that were called.
fn orders(called: &CalledReply) -> Result<Vec<u32>> {
    let keys = called.admitted.iter().map(|token| token.key.as_ref());
    let order = |key: Option<&Key>| {
        let key = std::str::from_utf8(key.context("no key")?.as_bytes())?;
        let order = key.strip_prefix("order-").context("no order")?;
        Ok(order.parse()?)
    };
    keys.map(order).collect()
}

fn lane(name: &str) -> Result<LaneName> {
    LaneName::try_from(name).with_context(|| format!("{name}: no name of a lane"))
}

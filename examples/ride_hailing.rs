//! A day of a ride-hailing queue.
//!
//! A city is divided into hives. Each hive has a line for each type of vehicle; its seats are the drivers that
//! are free there. Riders wait in lanes: normal, from a partner's channel, with priority, and absolute (before
//! all others). The app of a rider knows only the order number: it is the key. A driver takes the next rider; the
//! seat is free again at the end of the ride. For vans a dispatcher decides which rider is next.
//!
//! Run it with the URL of the cluster's NATS server. It checks each step, and fails if one goes wrong.

use std::collections::{BTreeMap, VecDeque};

use anyhow::{Context, Result, ensure};
use nowserving_client::{
    AdminLine, CallNext, CalledReply, Client, Code, Journal, JournalEntryReply, Key, LaneName,
    Line, State, StatusReply, Take, TokenBy,
};
use nowserving_examples::{configure, connect, delete, journal, make, refused, ticket, turn};
use serde_json::{Value, json};

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
    let (line, admin) = make(&client, "hive-7-economy", settings("economy", 2)).await?;
    let mut economy = Queue::new(line, admin);
    let (line, admin) = make(&client, "hive-7-comfort", settings("comfort", 1)).await?;
    let mut comfort = Queue::new(line, admin);

    println!("Morning in hive 7: two economy drivers are free, and one comfort driver.");
    rush_hour(&mut economy).await?;
    println!("Order 4 also asks for a comfort car, gets it, and leaves the economy queue.");
    comfort.order(4, "normal").await?;
    comfort.pick_up(4).await?;
    economy.leave(4).await?;

    in_their_turn(&mut economy).await?;
    forced_exit(&economy).await?;
    dispatcher(&client).await?;
    for queue in [&mut economy, &mut comfort] {
        while !queue.rides.is_empty() {
            queue.drop_off().await?;
        }
    }
    archive(&economy).await?;
    delete(&economy.admin).await?;
    delete(&comfort.admin).await
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
    let page = Journal {
        lane: Some(lane("channel")?),
        token: Some(1),
        ..Journal::default()
    };
    let explained = economy.admin.journal(&page).await?.explain;
    let overtakers = explained.context("no explanation")?.overtakers;
    let why: BTreeMap<String, String> = (overtakers.into_iter())
        .map(|other| (other.lane.to_string(), other.by))
        .collect();
    println!("Before order 7 went, of those who came later: {why:?}.");
    ensure!(why["absolute"] == "absolute" && why["priority"] == "boost");
    Ok(())
}

/// Orders whose state has not changed for too long leave the queue by force.
async fn forced_exit(economy: &Queue) -> Result<()> {
    configure(&economy.admin, json!({"max_wait_ms": 1_000})).await?;
    let tickets = [economy.ticket(3).await, economy.ticket(5).await];
    for ticket in tickets.into_iter().flatten() {
        let gone = turn(&economy.line, &ticket).await?;
        ensure!(gone.reason.as_deref() == Some("wait_expired"), "{gone:?}");
    }
    refused(economy.line.find(key(3)).await, Code::TokenNotFound)?;
    println!("No driver for orders 3 and 5 in the longest time that a rider may wait: they go.");
    Ok(())
}

/// Nobody gets a van whom the dispatcher does not call: the next rider, or one whose luggage fits.
async fn dispatcher(client: &Client) -> Result<()> {
    let mut called = settings("van", 2);
    called["admission"] = json!("called");
    let (line, admin) = make(client, "hive-7-van", called).await?;
    let vans = Queue::new(line, admin);
    for order in [21, 22, 23] {
        let waits = vans.order(order, "normal").await?;
        ensure!(waits.state == State::Waiting, "{waits:?}");
    }
    println!("Orders 21 to 23 ask for vans. Two are free, and stand until the dispatcher calls.");
    let next = CallNext {
        n: 1,
        lane: None,
        call_id: "morning-1".to_owned(),
    };
    let one = vans.admin.call_next(&next).await?;
    ensure!(orders(&one)? == [21], "{one:?}");
    // The answer was lost, perhaps: the same call calls nobody else.
    ensure!(vans.admin.call_next(&next).await? == one);
    let third = Take {
        key: Some(Key::new(key(23).into_bytes())?),
        ..Take::default()
    };
    let taken = vans.admin.take(&third).await?;
    ensure!(orders(&taken)? == [23] && vans.place(22).await? == "1");
    println!("The dispatcher calls order 21, and takes order 23 out of order.");
    let page = Journal {
        lane: Some(lane("normal")?),
        token: Some(2),
        ..Journal::default()
    };
    let explained = vans.admin.journal(&page).await?.explain;
    let overtakers = explained.context("no explanation")?.overtakers;
    ensure!(overtakers.iter().all(|other| other.by == "take") && overtakers.len() == 1);
    println!("The journal explains it to order 22: an operator's word.");
    delete(&vans.admin).await
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

/// The day as the journal has it: how the orders of each lane ended.
async fn archive(economy: &Queue) -> Result<()> {
    let mut day = BTreeMap::<(String, String), u32>::new();
    for entry in journal(&economy.admin).await? {
        let JournalEntryReply {
            what, lane, reason, ..
        } = entry;
        if let Some(lane) = lane {
            let what = reason.unwrap_or(what);
            *day.entry((lane.to_string(), what)).or_default() += 1;
        }
    }
    println!("The day of hive 7, economy:");
    for ((lane, what), many) in &day {
        println!("  {lane:8}  {what:12}  {many}");
    }
    let many = |lane: &str, what: &str| day.get(&(lane.to_owned(), what.to_owned())).copied();
    ensure!(many("normal", "entered") == Some(6) && many("normal", "completed") == Some(2));
    ensure!(many("normal", "moved") == Some(1) && many("normal", "left") == Some(1));
    ensure!(many("normal", "wait_expired") == Some(2));
    ensure!(many("priority", "entered") == Some(1) && many("priority", "completed") == Some(2));
    for lane in ["channel", "absolute"] {
        ensure!(many(lane, "entered") == Some(1) && many(lane, "completed") == Some(1));
    }
    Ok(())
}

impl Queue {
    fn new(line: Line, admin: AdminLine) -> Self {
        Self {
            line,
            admin,
            rides: VecDeque::new(),
        }
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
        self.line.complete(&ticket, epoch).await?;
        Ok(())
    }
}

fn key(order: u32) -> String {
    format!("order-{order}")
}

/// By what the app knows.
fn by_key(order: u32) -> Result<TokenBy> {
    Ok(TokenBy::Key(Key::new(key(order).into_bytes())?))
}

fn lane(name: &str) -> Result<LaneName> {
    LaneName::try_from(name).with_context(|| format!("{name}: no name of a lane"))
}

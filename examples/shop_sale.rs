//! A ticket shop's sale at noon: eight tickets a day, in baskets of one or two.
//!
//! Shoppers take numbers before noon, when the line is in phase `pre_open`; nobody gets a seat. At noon it opens, and draws
//! the order in which they go, so that the fastest script wins nothing. Two pay at a time. Each seat reserves two tickets; whoever needs one gives the other back,
//! and says so on completing. The line gives out half as many numbers again as there are baskets, as some change their
//! minds; before the draw its `queue_limit` is what limits that. A shopper that finds no number left asks for a callback, and is told as soon as there is one. Once eight are
//! sold, those who still wait are told. The next day there are eight again.
//!
//! Run it with the URL of the cluster's NATS server. It checks each step, and fails if one goes wrong.

use anyhow::{Result, ensure};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use nowserving_client::{AdminLine, Code, EventStream, Line, LineEvent, State, StatusReply};
use nowserving_examples::{configure, connect, delete, event, make, refused, room, ticket, turn};
use serde_json::{Value, json};

const ZONE: &str = "Asia/Taipei";

#[tokio::main]
async fn main() -> Result<()> {
    let client = connect().await?;
    let settings = json!({
        "seats": 2,
        "queue_limit": 4,
        "phase": "pre_open",
        "opening": "draw",
        "quota": quota(json!({"at": half_a_day_from_now()?, "zone": ZONE})),
        "callback_limit": 100,
    });
    let (line, admin) = make(&client, "noon-sale", settings).await?;
    let sale = Sale {
        events: line.events().await?,
        line,
        admin,
        shoppers: Vec::new(),
    };
    sale.tell().await
}

struct Sale {
    line: Line,
    admin: AdminLine,
    /// What the line says of itself. The backend of the shop listens.
    events: EventStream<LineEvent>,
    /// As they entered; from the draw on in its order: shopper 1 is the first.
    shoppers: Vec<StatusReply>,
}

impl Sale {
    async fn tell(mut self) -> Result<()> {
        self.before_noon().await?;
        self.noon().await?;
        self.changed_minds().await?;
        self.the_next_day().await?;
        let shown = self.admin.show().await?;
        let counts = serde_json::to_value(&shown.counts)?;
        ensure!(counts["gone"]["completed"] == 6, "{counts}");
        println!("The books: {counts}.");
        delete(&self.admin).await
    }

    /// Numbers are given out, until there is one for each basket and each in reserve.
    async fn before_noon(&mut self) -> Result<()> {
        for shopper in 1..=6 {
            let status = self.line.enter(key(shopper)).await?;
            ensure!(status.state == State::Waiting && status.position.is_none());
            self.shoppers.push(status);
        }
        println!(
            "11:58. Six shoppers have taken numbers. None has a seat, or a place: the draw is at noon."
        );
        for shopper in [7, 8] {
            refused(self.line.enter(key(shopper)).await, Code::LineFull)?;
            let asked = self.line.callback(key(shopper), None).await?;
            ensure!(!asked.room && asked.position == Some(shopper - 6));
        }
        println!("Shoppers 7 and 8 are turned away: the line holds six.");
        println!("Both ask to be called back.");
        Ok(())
    }

    /// The schedule opens the line, and nobody else.
    async fn noon(&mut self) -> Result<()> {
        let noon = Timestamp::now() + SignedDuration::from_secs(2);
        let opens = json!({"at": noon.to_string(), "set": {"phase": "open"}});
        configure(&self.admin, json!({"schedule": [opens]})).await?;
        event(&mut self.events, "drawn").await?;
        self.drawn().await?;
        let first = self.pay(1).await?;
        ensure!(
            self.admin.show().await?.settings.schedule.is_empty(),
            "a change is made once"
        );
        let second = self.pay(2).await?;
        let third = self.line.status(self.ticket(3)?).await?;
        ensure!(third.state == State::Waiting && third.position == Some(1));
        ensure!(first.units == Some(2), "{first:?}");
        println!("Shoppers 1 and 2 pay, up to two tickets each. Shopper 3 is next.");
        self.done(&first, 2).await?;
        self.done(&second, 2).await
    }

    /// Each has another number now, and its old ticket is good for asking which.
    async fn drawn(&mut self) -> Result<()> {
        for shopper in &mut self.shoppers {
            *shopper = self.line.status(ticket(shopper)?).await?;
        }
        let came: Vec<u64> = self.shoppers.iter().map(|it| it.token).collect();
        self.shoppers.sort_by_key(|it| it.token);
        let drawn: Vec<u64> = self.shoppers.iter().map(|it| it.token).collect();
        ensure!(drawn == [7, 8, 9, 10, 11, 12], "{drawn:?}");
        let draw = self.admin.show().await?.draw;
        let seed = draw.and_then(|draw| draw.seed);
        println!(
            "12:00. The line has opened by itself, as its schedule says, and drawn the order."
        );
        println!("As they came, the six have numbers {came:?} now; the seed is {seed:?}.");
        println!("From here on they are called by their places: shopper 1 is who was drawn first.");
        Ok(())
    }

    /// Tickets, and then numbers, come back.
    async fn changed_minds(&mut self) -> Result<()> {
        let third = self.pay(3).await?;
        let fourth = self.pay(4).await?;
        println!(
            "They have four tickets; shoppers 3 and 4 pay. All the others are about to be sold."
        );
        let fifth = self.line.status(self.ticket(5)?).await?;
        ensure!(
            fifth.state == State::Waiting,
            "nothing is left for shopper 5"
        );

        self.line.leave(ticket(&third)?).await?;
        let fifth = self.pay(5).await?;
        println!("Shopper 3 changes its mind. Its two go to shopper 5.");
        ensure!(room(&mut self.events).await? == [key(7)]);
        let seventh = self.line.enter(key(7)).await?;
        ensure!(seventh.state == State::Waiting && seventh.position == Some(2));
        println!("There is one number again. Shopper 7 is called back, and takes it.");

        self.line.leave(ticket(&fourth)?).await?;
        let sixth = self.pay(6).await?;
        ensure!(room(&mut self.events).await? == [key(8)]);
        println!("Shopper 4 does, too, and 6 pays. Shopper 8 is called back, and takes a number.");
        let eighth = self.line.enter(key(8)).await?;
        refused(
            self.line.complete(ticket(&fifth)?, None, Some(3)).await,
            Code::BadRequest,
        )?;
        self.done(&fifth, 1).await?;
        self.shoppers.push(seventh);
        let seventh = self.pay(7).await?;
        ensure!(seventh.units == Some(1), "{seventh:?}");
        println!("Shopper 5 needs one ticket. The other one goes to shopper 7, who may buy one.");
        self.done(&sixth, 2).await?;
        self.done(&seventh, 1).await?;

        let eighth = turn(&self.line, ticket(&eighth)?).await?;
        ensure!(eighth.reason.as_deref() == Some("sold_out"), "{eighth:?}");
        println!("Eight tickets are sold. Shopper 8, who still waits, is told: sold out.");
        refused(self.line.enter(key(8)).await, Code::SoldOut)
    }

    /// The quota is renewed: eight more.
    async fn the_next_day(&mut self) -> Result<()> {
        let asked = self.line.callback(key(8), None).await?;
        ensure!(!asked.room && asked.position == Some(1));
        println!("Shopper 8 comes too late, and asks to be called back again.");
        // Nobody wants to wait for half a day here.
        let soon = json!({"quota": quota(json!({"every_ms": 2_000}))});
        configure(&self.admin, soon).await?;
        event(&mut self.events, "quota_renewed").await?;
        ensure!(room(&mut self.events).await? == [key(8)]);
        println!("The next day there are eight tickets again. Shopper 8 is called back.");
        self.shoppers.push(self.line.enter(key(8)).await?);
        let eighth = self.pay(8).await?;
        self.done(&eighth, 1).await
    }

    fn ticket(&self, number: usize) -> Result<&str> {
        ticket(&self.shoppers[number - 1])
    }

    /// Waits for the turn of the one who was the nth to enter, and begins its checkout. The status has the ticket.
    async fn pay(&self, number: usize) -> Result<StatusReply> {
        let ticket = self.ticket(number)?;
        let admitted = turn(&self.line, ticket).await?;
        ensure!(admitted.state == State::Admitted, "{admitted:?}");
        let claimed = self.line.claim(ticket).await?;
        Ok(StatusReply {
            ticket: Some(ticket.to_owned()),
            ..claimed
        })
    }

    /// A shopper has paid for so many tickets.
    async fn done(&self, paid: &StatusReply, tickets: u32) -> Result<()> {
        self.line
            .complete(ticket(paid)?, paid.epoch, Some(tickets))
            .await?;
        Ok(())
    }
}

fn key(shopper: u64) -> String {
    format!("shopper-{shopper}")
}

/// Eight tickets each time, at most two in a basket, and numbers for half as many again.
fn quota(renew: Value) -> Value {
    json!({"total": 8, "per_visit": 2, "standby_percent": 50, "renew": renew})
}

/// A shop would say `06:00`. This sale may be told at any time of the day, and must not be renewed in its middle.
fn half_a_day_from_now() -> Result<String> {
    let then = Timestamp::now() + SignedDuration::from_hours(12);
    let then = then.to_zoned(TimeZone::get(ZONE)?);
    Ok(then.strftime("%H:%M").to_string())
}

//! A shop's sale at noon: four pieces of one thing a day.
//!
//! Shoppers take numbers before noon, when the line is in phase `pre_open`; nobody gets a seat. At noon it opens.
//! Two pay at a time, who came first goes first. The line gives out half as many numbers again as there are
//! pieces, as some change their minds. A shopper that finds no number left asks for a callback, and is told as soon
//! as there is one. Once four are sold, those who still wait are told. The next day there are four again.
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
        "queue_limit": 1_000,
        "phase": "pre_open",
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
    /// As they entered: shopper 1 is the first.
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
        ensure!(counts["gone"]["completed"] == 5, "{counts}");
        println!("The books: {counts}.");
        delete(&self.admin).await
    }

    /// Numbers are given out, until there is one for each piece and each in reserve.
    async fn before_noon(&mut self) -> Result<()> {
        for shopper in 1..=6 {
            let status = self.line.enter(key(shopper)).await?;
            ensure!(status.state == State::Waiting && status.position == Some(shopper));
            self.shoppers.push(status);
        }
        println!(
            "11:58. Six shoppers have taken numbers 1 to 6. None has a seat: the sale opens at noon."
        );
        for shopper in [7, 8] {
            refused(self.line.enter(key(shopper)).await, Code::SoldOut)?;
            let asked = self.line.callback(key(shopper), None).await?;
            ensure!(!asked.room && asked.position == Some(shopper - 6));
        }
        println!("Shoppers 7 and 8 are turned away: four pieces, and two numbers more, is all.");
        println!("Both ask to be called back.");
        Ok(())
    }

    /// The schedule opens the line, and nobody else.
    async fn noon(&mut self) -> Result<()> {
        let noon = Timestamp::now() + SignedDuration::from_secs(2);
        let opens = json!({"at": noon.to_string(), "set": {"phase": "open"}});
        configure(&self.admin, json!({"schedule": [opens]})).await?;
        let first = self.pay(1).await?;
        ensure!(
            self.admin.show().await?.settings.schedule.is_empty(),
            "a change is made once"
        );
        println!("12:00. The line has opened by itself, as its schedule says.");
        let second = self.pay(2).await?;
        let third = self.line.status(self.ticket(3)?).await?;
        ensure!(third.state == State::Waiting && third.position == Some(1));
        println!("Shoppers 1 and 2 pay. Shopper 3 is next.");
        self.done(&first).await?;
        self.done(&second).await
    }

    /// Pieces, and then numbers, come back.
    async fn changed_minds(&mut self) -> Result<()> {
        let third = self.pay(3).await?;
        let fourth = self.pay(4).await?;
        println!("They have theirs; shoppers 3 and 4 pay. All pieces are sold or about to be.");
        let fifth = self.line.status(self.ticket(5)?).await?;
        ensure!(
            fifth.state == State::Waiting,
            "nothing is left for shopper 5"
        );

        self.line.leave(ticket(&third)?).await?;
        let fifth = self.pay(5).await?;
        println!("Shopper 3 changes its mind. Its piece goes to shopper 5.");
        ensure!(room(&mut self.events).await? == [key(7)]);
        let seventh = self.line.enter(key(7)).await?;
        ensure!(seventh.state == State::Waiting && seventh.position == Some(2));
        println!("There is one number again. Shopper 7 is called back, and takes it.");

        self.line.leave(ticket(&fourth)?).await?;
        let sixth = self.pay(6).await?;
        ensure!(room(&mut self.events).await? == [key(8)]);
        println!(
            "Shopper 4 does, too, and 6 pays. Shopper 8 is called back, and does not hear it."
        );
        self.done(&fifth).await?;
        self.done(&sixth).await?;

        let seventh = turn(&self.line, ticket(&seventh)?).await?;
        ensure!(seventh.reason.as_deref() == Some("sold_out"), "{seventh:?}");
        println!("Four pieces are sold. Shopper 7, who still waits, is told: sold out.");
        refused(self.line.enter(key(8)).await, Code::SoldOut)
    }

    /// The quota is renewed: four more.
    async fn the_next_day(&mut self) -> Result<()> {
        let asked = self.line.callback(key(8), None).await?;
        ensure!(!asked.room && asked.position == Some(1));
        println!("Shopper 8 comes too late, and asks to be called back again.");
        // Nobody wants to wait for half a day here.
        let soon = json!({"quota": quota(json!({"every_ms": 2_000}))});
        configure(&self.admin, soon).await?;
        event(&mut self.events, "quota_renewed").await?;
        ensure!(room(&mut self.events).await? == [key(8)]);
        println!("The next day there are four pieces again. Shopper 8 is called back.");
        self.shoppers.push(self.line.enter(key(8)).await?);
        let eighth = self.pay(7).await?;
        self.done(&eighth).await
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

    /// A shopper has paid.
    async fn done(&self, paid: &StatusReply) -> Result<()> {
        self.line.complete(ticket(paid)?, paid.epoch).await?;
        Ok(())
    }
}

fn key(shopper: u64) -> String {
    format!("shopper-{shopper}")
}

/// Four pieces each time, and numbers for half as many again.
fn quota(renew: Value) -> Value {
    json!({"total": 4, "standby_percent": 50, "renew": renew})
}

/// A shop would say `06:00`. This sale may be told at any time of the day, and must not be renewed in its middle.
fn half_a_day_from_now() -> Result<String> {
    let then = Timestamp::now() + SignedDuration::from_hours(12);
    let then = then.to_zoned(TimeZone::get(ZONE)?);
    Ok(then.strftime("%H:%M").to_string())
}

//! A shop's sale at noon: four pieces of one thing.
//!
//! Shoppers take numbers before noon, when the line is in phase `pre_open`; nobody gets a seat. At noon it opens.
//! Two pay at a time, who came first goes first. The line gives out half as many numbers again as there are
//! pieces, as some change their minds; whoever comes after that is told at once. Once four are sold, those who
//! still wait are told.
//!
//! Run it with the URL of the cluster's NATS server. It checks each step, and fails if one goes wrong.

use anyhow::{Result, ensure};
use jiff::{SignedDuration, Timestamp};
use nowserving_client::{Code, Line, State, StatusReply};
use nowserving_examples::{configure, connect, delete, make, refused, ticket, turn};
use serde_json::json;

#[tokio::main]
async fn main() -> Result<()> {
    let client = connect().await?;
    let settings = json!({
        "seats": 2,
        "queue_limit": 1_000,
        "phase": "pre_open",
        "quota": {"total": 4, "standby_percent": 50},
    });
    let (line, admin) = make(&client, "noon-sale", settings).await?;

    let mut shoppers = Vec::new();
    for shopper in 1..=6 {
        let status = line.enter(format!("shopper-{shopper}")).await?;
        ensure!(status.state == State::Waiting && status.position == Some(shopper));
        shoppers.push(status);
    }
    println!(
        "11:58. Six shoppers have taken numbers 1 to 6. None has a seat: the sale opens at noon."
    );
    refused(line.enter("shopper-7").await, Code::SoldOut)?;
    println!("Shopper 7 is turned away: four pieces, and two numbers more, is all there is.");

    let noon = Timestamp::now() + SignedDuration::from_secs(2);
    let opens = json!({"at": noon.to_string(), "set": {"phase": "open"}});
    configure(&admin, json!({"schedule": [opens]})).await?;
    let first = pay(&line, &shoppers[0]).await?;
    ensure!(
        admin.show().await?.settings.schedule.is_empty(),
        "a change is made once"
    );
    println!("12:00. The line has opened by itself, as its schedule says.");
    let second = pay(&line, &shoppers[1]).await?;
    let third = line.status(ticket(&shoppers[2])?).await?;
    ensure!(third.state == State::Waiting && third.position == Some(1));
    println!("Shoppers 1 and 2 pay. Shopper 3 is next.");

    line.complete(ticket(&first)?, first.epoch).await?;
    let third = pay(&line, &shoppers[2]).await?;
    line.complete(ticket(&second)?, second.epoch).await?;
    let fourth = pay(&line, &shoppers[3]).await?;
    println!("They have theirs; shoppers 3 and 4 pay. All pieces are sold or about to be.");
    let status = line.status(ticket(&shoppers[4])?).await?;
    ensure!(
        status.state == State::Waiting,
        "nothing is left for shopper 5"
    );

    line.leave(ticket(&third)?).await?;
    println!("Shopper 3 changes its mind. Its piece goes to shopper 5.");
    let fifth = pay(&line, &shoppers[4]).await?;
    line.complete(ticket(&fourth)?, fourth.epoch).await?;
    line.complete(ticket(&fifth)?, fifth.epoch).await?;

    let sixth = turn(&line, ticket(&shoppers[5])?).await?;
    ensure!(sixth.reason.as_deref() == Some("sold_out"), "{sixth:?}");
    println!("Four pieces are sold. Shopper 6, who still waits, is told: sold out.");
    refused(line.enter("shopper-8").await, Code::SoldOut)?;

    let shown = admin.show().await?;
    let counts = serde_json::to_value(&shown.counts)?;
    ensure!(counts["gone"]["completed"] == 4, "{counts}");
    println!("The books: {counts}.");
    delete(&admin).await
}

/// Waits for the turn of a shopper, and begins its checkout. The status has the ticket.
async fn pay(line: &Line, shopper: &StatusReply) -> Result<StatusReply> {
    let ticket = ticket(shopper)?;
    let admitted = turn(line, ticket).await?;
    ensure!(admitted.state == State::Admitted, "{admitted:?}");
    let claimed = line.claim(ticket).await?;
    Ok(StatusReply {
        ticket: Some(ticket.to_owned()),
        ..claimed
    })
}

//! The configurations of `deploy/gates`, each with its real program before a shop that knows nothing of nowserving.
//!
//! The usual tests try each of them once (`each_once`): one visitor is kept out, one is let in, and nobody brings a pass. All
//! other cases are `every_case`, which `cargo xtask ci --front` runs for each program: who is kept out, who is let in, and what
//! happens while the gateway or the cluster is away.

mod away;
pub mod front;
pub mod kept_out;
pub mod let_in;
mod notices;
pub mod proxy;
pub mod shop;
pub mod visitor;
pub mod wire;

use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use nowserving_e2e::{Cluster, Options, run, skipped};

use self::front::{Front, Gateway, TICKETS, TO, make_lines};
use self::proxy::{Away, Kind};
use self::shop::Shop;
use self::visitor::Visitor;

/// All programs that are here, one after the other, before one gateway.
pub async fn each_once(cluster: &mut Cluster) -> Result<()> {
    make_lines(cluster, 10).await?;
    let gateway = Gateway::start(cluster, "hold").await?;
    let noticed = notices::are_shown(cluster, &gateway).await;
    if noticed.is_err() {
        eprintln!("{}", gateway.process().tail(20));
    }
    noticed.context("announcements")?;
    for kind in Kind::ALL {
        let name = kind.name();
        let Some(program) = kind.program() else {
            no_program(kind)?;
            continue;
        };
        let shop = Shop::start().await?;
        let behind = gateway.behind(&shop);
        let folder = cluster.folder().join(name);
        let proxy = kind.start(&program, &folder, behind, Away::Closed).await?;
        let outcome = async {
            front::answers(&proxy).await?;
            once(&Visitor::new(proxy.addr), &shop).await
        };
        let outcome = outcome.await;
        if outcome.is_err() {
            eprintln!("{}{}", proxy.process.tail(20), gateway.process().tail(20));
        }
        outcome.with_context(|| name.to_owned())?;
    }
    Ok(())
}

async fn once(visitor: &Visitor, shop: &Shop) -> Result<()> {
    let forging = visitor.sending("Nowserving-Pass", "forged.by.me");
    shop.seen();
    let answer = forging.clone().page(TO).await?;
    ensure!(answer.status == 503, "{answer:?}");
    ensure!(answer.page().as_deref() == Some("enter"), "{answer:?}");
    let seen = shop.seen();
    ensure!(seen.is_empty(), "the shop saw {seen:?}");
    let mut admitted = forging;
    let answer = admitted.enter(TICKETS, TO).await?;
    ensure!(answer.status == 303, "{answer:?}");
    ensure!(answer.head.get("location") == Some(TO), "{answer:?}");
    let asked = admitted.page(TO).await?.asked()?;
    ensure!(asked["path"] == TO, "{asked}");
    let_in::one_pass(&asked)
}

/// Whether `cargo xtask ci --front` asks.
pub fn in_all_cases() -> bool {
    std::env::var_os("NOWSERVING_FRONT").is_some()
}

/// All cases of each program that is here, each before a cluster of its own.
pub async fn every_case() -> Result<()> {
    for kind in Kind::ALL {
        match kind.program() {
            Some(program) => Box::pin(cases_of(kind, program))
                .await
                .context(kind.name())?,
            None => no_program(kind)?,
        }
    }
    Ok(())
}

async fn cases_of(kind: Kind, program: PathBuf) -> Result<()> {
    let options = Options {
        shards: 4,
        ..Options::default()
    };
    run(options, async |cluster| {
        make_lines(cluster, 2).await?;
        let mut front = Front::start(cluster, kind, program, "hold", Away::Closed).await?;
        let outcome = async {
            // In boxes: a test's thread has a small stack.
            let kept_out = Box::pin(kept_out::all(cluster, &front)).await;
            kept_out.context("kept out")?;
            let inside = Box::pin(let_in::all(cluster, &front)).await;
            let inside = inside.context("let in")?;
            let away = Box::pin(away::all(cluster, &mut front, inside)).await;
            away.context("away")
        };
        let outcome = outcome.await;
        if outcome.is_err() {
            front.show_logs();
        }
        outcome
    })
    .await
}

pub fn no_program(kind: Kind) -> Result<()> {
    let (name, variable) = (kind.name(), kind.variable());
    skipped(
        &format!("gates: {name}"),
        &format!("{variable} names no {name}"),
    )
}

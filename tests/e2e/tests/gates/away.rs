//! The gateway is dead, and the cluster is away.

use anyhow::{Context as _, Result, ensure};
use nowserving_e2e::{Cluster, eventually};

use super::front::{self, Front, PATIENCE, TO};
use super::kept_out;
use super::let_in::{Inside, no_pass};
use super::proxy::Away;
use super::visitor::Visitor;

/// Requests after the gateway's end: before and after a proxy's health check has found out.
const TRIES: usize = 40;

pub async fn all(cluster: &mut Cluster, front: &mut Front, mut inside: Inside) -> Result<()> {
    let folder = cluster.folder().join(format!("{}-open", front.kind.name()));
    let behind = front.gateway.behind(&front.shop);
    let open = front
        .kind
        .start(&front.program, &folder, behind, Away::Open);
    let open = open.await?;
    front::answers(&open).await.context("the open one")?;
    front.shop.seen();
    let large = kept_out::large_headers(front, open.addr).await;
    large.context("large headers, by the open one")?;
    front.gateway.kill().await?;
    closed(front, &mut inside).await.context("closed")?;
    let opened = opens(&Visitor::new(open.addr)).await;
    if opened.is_err() {
        eprint!("{}", open.process.tail(30));
    }
    opened.context("open")?;
    drop(open);
    front.gateway.start_again().await?;
    front::answers(&front.proxy).await.context("it is back")?;
    ensure!(
        inside.admitted.page(TO).await?.is_shops(),
        "it has kept its seat"
    );
    front.shop.seen();

    let others = async |on_unavailable| {
        let program = front.program.clone();
        Front::start(cluster, front.kind, program, on_unavailable, Away::Closed).await
    };
    let (allowing, denying) = (others("allow").await?, others("deny").await?);
    for id in 1..=cluster.options().nodes {
        cluster.process(id)?.kill().await?;
    }
    let outcome = async {
        holds(front, &mut inside).await.context("hold")?;
        allows(&allowing, &inside).await.context("allow")?;
        denies(&denying, &inside).await.context("deny")
    };
    let outcome = outcome.await;
    if outcome.is_err() {
        allowing.show_logs();
        denying.show_logs();
    }
    outcome
}

/// The proxy itself says that it cannot ask, and lets nobody through.
async fn closed(front: &Front, inside: &mut Inside) -> Result<()> {
    for nth in 0..TRIES {
        let answer = match nth % 4 {
            0 => front.stranger().page(TO).await?,
            1 => inside.admitted.page(TO).await?,
            2 => front.stranger().fetch(TO, Some("{}")).await?,
            _ => {
                front
                    .stranger()
                    .page("/_nowserving/wait?line=tickets")
                    .await?
            }
        };
        front.kept_out(&answer)?;
        ensure!(answer.page().is_none(), "{answer:?}");
    }
    let posted = front.stranger().post(TO, "n=1").await?;
    front.kept_out(&posted)?;
    let socket = inside.admitted.web_socket("/tickets/live").await?;
    front.kept_out(&socket.context("a WebSocket to the shop")?)
}

/// Everybody is in the shop, without a pass.
async fn opens(stranger: &Visitor) -> Result<()> {
    let forging = stranger.sending("Nowserving-Pass", "forged.by.me");
    eventually("the shop is open", PATIENCE, async || {
        let answer = forging.clone().page(TO).await?;
        no_pass(&answer.asked()?)?;
        Ok(Some(()))
    })
    .await?;
    let asked = forging.clone().post(TO, "n=1").await?.asked()?;
    ensure!(asked["body_bytes"] == 3, "{asked}");
    no_pass(&asked)
}

async fn holds(front: &Front, inside: &mut Inside) -> Result<()> {
    // The gateway knows it, and believes that until its pass ends.
    ensure!(
        inside.admitted.page(TO).await?.is_shops(),
        "it holds a seat"
    );
    front.shop.seen();
    eventually("who waits is told", PATIENCE, async || {
        let answer = inside.waiting.page(TO).await?;
        front.kept_out(&answer)?;
        Ok((answer.page().as_deref() == Some("unavailable")).then_some(()))
    })
    .await?;
    eventually("who comes is told", PATIENCE, async || {
        let mut stranger = front.stranger();
        let answer = stranger.enter("tickets", TO).await?;
        front.kept_out(&answer)?;
        Ok((answer.page().as_deref() == Some("unavailable_new")).then_some(()))
    })
    .await
}

async fn allows(front: &Front, inside: &Inside) -> Result<()> {
    for visitor in [&front.stranger(), &inside.waiting.at(front.proxy.addr)] {
        let forging = visitor.sending("Nowserving-Pass", "forged.by.me");
        eventually("the shop is open", PATIENCE, async || {
            let answer = forging.clone().page(TO).await?;
            no_pass(&answer.asked()?)?;
            Ok(Some(()))
        })
        .await?;
    }
    Ok(())
}

async fn denies(front: &Front, inside: &Inside) -> Result<()> {
    let waiting = inside.waiting.at(front.proxy.addr);
    eventually("it is refused", PATIENCE, async || {
        let answer = waiting.clone().page(TO).await?;
        front.kept_out(&answer)?;
        Ok(answer.is_problem().then_some(()))
    })
    .await
}

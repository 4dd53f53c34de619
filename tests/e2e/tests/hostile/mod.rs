//! Clients that mean harm, and a real gateway before a real cluster: they get clear answers, others are served meanwhile, and
//! the gateway's memory stays within a bound.

mod crowds;
mod limits;
mod smuggling;

use anyhow::{Context as _, Result};
use nowserving_e2e::Cluster;

use crate::gates::front::{Front, Gateway, make_lines};
use crate::gates::proxy::{Away, Kind};
use crate::gates::{in_all_cases, kept_out, let_in, no_program};

/// In the usual tests. They are of different makes: what one of them lets through, the other need not.
const USUAL: [Kind; 2] = [Kind::Nginx, Kind::Haproxy];

pub async fn everything(cluster: &mut Cluster) -> Result<()> {
    make_lines(cluster, 20).await?;
    // On a slow machine the crowd and the cluster share a processor.
    let settings = "patience_ms = 20000";
    let mut gateway = Gateway::start_with(cluster, "gateway-crowds", settings).await?;
    let crowds = Box::pin(crowds::all(&mut gateway)).await;
    if crowds.is_err() {
        eprint!("{}", gateway.process().tail(20));
    }
    crowds.context("crowds")?;
    drop(gateway);
    limits::by_address(cluster).await.context("limits")?;
    for kind in Kind::ALL {
        if !in_all_cases() && !USUAL.contains(&kind) {
            continue;
        }
        Box::pin(behind(cluster, kind)).await.context(kind.name())?;
    }
    Ok(())
}

async fn behind(cluster: &Cluster, kind: Kind) -> Result<()> {
    let Some(program) = kind.program() else {
        return no_program(kind);
    };
    let mut front = Front::start(cluster, kind, program, "hold", Away::Closed).await?;
    let outcome = async {
        smuggling::through(&front).await.context("smuggling")?;
        // All cases of these are in `gates`.
        if !in_all_cases() {
            kept_out::paths(&front).await.context("paths")?;
            kept_out::other_hosts(&front).await.context("hosts")?;
            kept_out::forged_cookies(&front).await.context("forged")?;
            let admitted = let_in::admitted(&front).await?;
            let stolen = let_in::cookies_of_others(&front, &admitted).await;
            stolen.context("stolen cookies")?;
            large_headers(cluster, &mut front)
                .await
                .context("large headers")?;
        }
        anyhow::Ok(())
    };
    let outcome = outcome.await;
    if outcome.is_err() {
        front.show_logs();
    }
    outcome
}

/// By the proxy as it is shipped, and where the shop is open while no gateway answers.
async fn large_headers(cluster: &Cluster, front: &mut Front) -> Result<()> {
    kept_out::large_headers(front, front.proxy.addr).await?;
    let folder = cluster.folder().join(format!("{}-open", front.kind.name()));
    let behind = front.gateway.behind(&front.shop);
    let open = front
        .kind
        .start(&front.program, &folder, behind, Away::Open)
        .await?;
    crate::gates::front::answers(&open).await?;
    front.shop.seen();
    let outcome = kept_out::large_headers(front, open.addr).await;
    if outcome.is_err() {
        eprint!("{}", open.process.tail(20));
    }
    outcome.context("by the open one")
}

//! Rate limits by address, which the cluster counts.

use std::net::Ipv4Addr;

use anyhow::{Result, ensure};
use nowserving_e2e::Cluster;
use serde_json::{Value, json};

use crate::gates::front::{Gateway, TICKETS, TO};
use crate::gates::visitor::{Answer, Visitor, encoded};

/// By the day, so that no window ends in a test but by rare chance.
const RULES: &str = "domain: web
descriptors:
  - key: request
    value: enter
    descriptors:
      - key: remote_address
        rate_limit: {unit: day, requests_per_unit: 2}
";
const OTHER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 3);

pub async fn by_address(cluster: &Cluster) -> Result<()> {
    cluster.api().apply_rules("web", RULES).await?;
    let settings = "address_limits = { domain = \"web\" }";
    let gateway = Gateway::start_with(cluster, "gateway-limits", settings).await?;
    let outcome = two_each(cluster, &gateway).await;
    if outcome.is_err() {
        eprint!("{}", gateway.process().tail(20));
    }
    outcome
}

async fn two_each(cluster: &Cluster, gateway: &Gateway) -> Result<()> {
    let mut first = Visitor::new(gateway.addr());
    let mut second = first.clone();
    for visitor in [&mut first, &mut second] {
        let entered = enter(visitor).await?;
        ensure!(entered.status == 303, "{entered:?}");
    }
    let before = next_token(cluster).await?;
    let mut third = Visitor::new(gateway.addr());
    let refused = enter(&mut third).await?;
    ensure!(refused.status == 429, "{refused:?}");
    ensure!(refused.page().as_deref() == Some("limited"), "{refused:?}");
    let after_s = refused.head.get("retry-after").unwrap_or_default();
    ensure!(after_s.parse::<u64>()? >= 1, "{refused:?}");
    ensure!(next_token(cluster).await? == before, "a number was taken");
    // Those who have a number, and other addresses, are as before.
    let status = format!("/_nowserving/v1/lines/{TICKETS}/status");
    let status = first.fetch(&status, None).await?;
    ensure!(status.status == 200, "{status:?}");
    let mut other = Visitor::new(gateway.addr());
    other.from = OTHER;
    let entered = enter(&mut other).await?;
    ensure!(entered.status == 303, "{entered:?}");
    Ok(())
}

/// In two steps, at the gateway itself.
async fn enter(visitor: &mut Visitor) -> Result<Answer> {
    let to = encoded(TO);
    let wait = format!("/_nowserving/wait?line={TICKETS}&to={to}");
    let first = visitor.page(&wait).await?;
    ensure!(first.page().as_deref() == Some("enter"), "{first:?}");
    let form = format!("line={TICKETS}&to={to}");
    visitor.post("/_nowserving/enter", &form).await
}

async fn next_token(cluster: &Cluster) -> Result<Value> {
    let info = cluster.api().ok(TICKETS, "info", json!({})).await?;
    Ok(info["lanes"][0]["next_token"].clone())
}

//! An announcement of the operators, from the command line to the page, its data and its stream.

use anyhow::{Context as _, Result, ensure};
use nowserving_e2e::{Cli, Cluster, eventually};
use serde_json::Value;

use super::front::{Gateway, PATIENCE, TICKETS};
use super::visitor::{Visitor, encoded};

const EN: &str = "Gate B is closed. <Use> gate C.";
const BOTH: &str = r#"{"en": "Gate B is closed. <Use> gate C.", "de": "Tor B ist zu."}"#;

pub async fn are_shown(cluster: &Cluster, gateway: &Gateway) -> Result<()> {
    let cli = Cli::new(cluster.nats_urls());
    let wait = format!(
        "/_nowserving/wait?line={TICKETS}&to={}",
        encoded("/tickets/a")
    );
    // Without a proxy: of all that a visitor sees, the gateway makes it.
    let mut visitor = Visitor::new(gateway.addr());
    visitor.page(&wait).await?;
    let form = format!("line={TICKETS}&to={}", encoded("/tickets/a"));
    let answer = visitor.post("/_nowserving/enter", &form).await?;
    ensure!(answer.status == 303, "{answer:?}");
    let lines = format!("/_nowserving/v1/lines/{TICKETS}");
    let mut stream = visitor.stream(&format!("{lines}/events")).await?;
    stream.until("event: notice\ndata: {\"text\":null}").await?;

    let put = ["kv", "put", "notices", TICKETS, BOTH];
    cli.run(&put).await?.done()?;
    let quoted = serde_json::to_string(EN)?;
    stream
        .until(&format!(
            "event: notice\ndata: {{\"lang\":\"en\",\"text\":{quoted}}}"
        ))
        .await?;
    let page = visitor.page(&wait).await?;
    ensure!(
        page.body.contains("Gate B is closed. &lt;Use&gt; gate C."),
        "{page:?}"
    );
    let german = [("Accept", "text/html"), ("Accept-Language", "de-AT")];
    let page = visitor.ask("GET", &wait, &german, b"").await?;
    ensure!(page.body.contains("Tor B ist zu."), "{page:?}");
    let status = visitor.fetch(&format!("{lines}/status"), None).await?;
    let status: Value = serde_json::from_str(&status.body)?;
    ensure!(status["notice"]["text"] == EN, "{status}");

    let delete = ["kv", "delete", "notices", TICKETS];
    cli.run(&delete).await?.done()?;
    let gone = eventually("the announcement is taken back", PATIENCE, async || {
        let page = visitor.page(&wait).await?;
        Ok((!page.body.contains("Gate B")).then_some(()))
    });
    gone.await?;
    visitor
        .post("/_nowserving/leave", &form)
        .await
        .context("leaves")?;
    Ok(())
}

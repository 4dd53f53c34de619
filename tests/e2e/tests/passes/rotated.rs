//! Passes while the cluster's key is rotated: edges get the set of both keys first, and the one without the old key last.

use super::*;
use crate::members::change;
use crate::rotate_key::loaded;

/// How long tickets of the old key stay good.
const OLD_TICKETS: &str = "3s";

pub async fn passes(cluster: &Cluster, cli: &Cli, api: &Api) -> Result<()> {
    let signed = async || {
        let ticket = api.enter(LINE, "bob").await?["ticket"].clone();
        let body = json!({"ticket": ticket, "pass": true});
        text(&api.ok(LINE, "status", body).await?)
    };
    let old = signed().await?;
    let file = cluster.key_file();
    change(cli, &["new-key", file.to_str().context("a path")?]).await?;
    loaded(api, &[&[1, 2], &[1, 2], &[1, 2]]).await?;
    let both = key_set(cluster, cli, 2).await?;
    change(cli, &["rotate-key", "--tickets-until", OLD_TICKETS]).await?;
    let header = |pass: &str| pass.split('.').next().map(str::to_owned);
    let new = eventually("a pass of the new key", PATIENCE, async || {
        let pass = signed().await?;
        Ok((header(&pass) != header(&old)).then_some(pass))
    })
    .await?;
    let passes = [old, new];
    are(&both, &passes, [true, true]).await?;
    let alone = eventually("the old key's time is over", PATIENCE, async || {
        let status = api.cluster("status", json!({})).await?;
        let is_over = status["key"]["old_is_over"] == true;
        Ok(is_over.then_some(()))
    });
    alone.await?;
    let alone = key_set(cluster, cli, 1).await?;
    are(&alone, &passes, [false, true]).await
}

/// Both libraries and the SDK take these passes by that set, or refuse them.
async fn are(jwks: &Path, passes: &[String; 2], good: [bool; 2]) -> Result<()> {
    for (language, program) in PROGRAMS {
        let answers = ask(language, program, jwks, passes).await?;
        ensure!(answers.len() == passes.len(), "{language:?}: {answers:?}");
        for (answer, good) in answers.iter().zip(good) {
            ensure!(
                answer["claims"].is_object() == good,
                "{language:?}: {answer}"
            );
            ensure!(
                answer["refused"].is_string() != good,
                "{language:?}: {answer}"
            );
        }
    }
    let keys = verifier(jwks)?;
    for (pass, good) in passes.iter().zip(good) {
        let checked = keys.verify(pass, None, now_s()?);
        ensure!(checked.is_ok() == good, "{checked:?}");
    }
    Ok(())
}

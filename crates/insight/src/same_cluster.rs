//! Commands that are printed by a process, for a terminal where nothing is known of its cluster.

use nowserving_client::Client;
use nowserving_protocol::subject::DEFAULT_PREFIX;

use crate::finding::Finding;

/// The options that name the cluster of this client, each word as a shell needs it. Without a login: the reader has one of
/// its own.
pub fn options(client: &Client) -> Vec<String> {
    let prefix = Some(client.prefix()).filter(|prefix| *prefix != DEFAULT_PREFIX);
    let given = [("--nats", client.nats_url()), ("--prefix", prefix)];
    let mut words = Vec::new();
    for (option, value) in given {
        if let Some(Ok(value)) = value.map(shlex::try_quote) {
            words.extend([option.to_owned(), value.into_owned()]);
        }
    }
    words
}

/// Adds these options to the commands of all findings.
pub fn name_in(findings: &mut [Finding], options: &[String]) {
    let mends = findings.iter_mut().flat_map(|it| &mut it.mend);
    for command in mends.filter_map(|it| it.command.as_mut()) {
        for word in options {
            command.push(' ');
            command.push_str(word);
        }
    }
}

/// The finding that there is no connection. Nothing was asked, and nodes have no part in it.
pub fn without_nats(client: &Client) -> Finding {
    let at = client.nats_url().map(|url| format!(" at {url}"));
    unreachable(format!(
        "there is no connection to NATS{}, which is tried again and again",
        at.unwrap_or_default()
    ))
}

/// A connection that failed, with its error as the text.
pub(crate) fn unreachable(text: String) -> Finding {
    Finding::problem("nats_unreachable", text)
        .advise("start the NATS server, or correct its address or the login (--nats, NOWSERVING_NATS or a context)")
}

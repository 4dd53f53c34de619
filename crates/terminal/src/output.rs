//! Answers on stdout, errors on stderr; with `--json` both as one line of JSON on stdout.

use std::io::{self, IsTerminal as _, Write as _};
use std::process::ExitCode;

use nowserving_client::{ApiError, Code, Error, Kind};
use serde::Serialize;

/// Exit code: the cluster refused the request.
pub const REFUSED: u8 = 1;
/// The command line was wrong.
pub const USAGE: u8 = 2;
/// The cluster could not be reached, or did not answer in time.
pub const UNREACHABLE: u8 = 3;

/// The command line is wrong in a way that clap does not detect.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} (see --help)")]
pub struct WrongUsage(pub String);

/// A file that the command line names has wrong content.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct WrongFile(pub String);

/// What was asked for has begun, and did not end in time.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct NotInTime(pub String);

/// An error of the cluster in other words.
#[derive(Debug, thiserror::Error)]
#[error("{}: {message}", error.kind())]
pub struct Explained {
    /// The cluster's own error.
    pub error: Error,
    /// What is said in place of its message.
    pub message: String,
}

/// Where answers go, and in which form.
#[derive(Debug, Clone, Copy)]
pub struct Output {
    /// One line of JSON per answer.
    pub json: bool,
    /// Colours may be used on stdout.
    pub colour: bool,
    /// Stdout is a terminal: printed text may be replaced.
    pub live: bool,
}

impl Output {
    pub fn new(json: bool) -> Output {
        let terminal = io::stdout().is_terminal();
        Output {
            json,
            colour: !json && wants_colour(terminal),
            live: !json && terminal,
        }
    }

    /// Prints an answer: as JSON, or as the text that `text` makes of it.
    pub fn answer<T: Serialize>(
        &self,
        value: &T,
        text: impl FnOnce(&T) -> String,
    ) -> anyhow::Result<()> {
        if self.json {
            self.line(&serde_json::to_string(value)?)
        } else {
            self.line(&text(value))
        }
    }

    /// Prints one line (or a table), at once: a pipe's reader is waiting for it.
    pub fn line(&self, text: &str) -> anyhow::Result<()> {
        let mut stdout = io::stdout().lock();
        writeln!(stdout, "{text}")?;
        stdout.flush()?;
        Ok(())
    }

    /// Prints an error and returns its exit code.
    pub fn fail(&self, error: &anyhow::Error) -> ExitCode {
        if is_broken_pipe(error) {
            // `nowserving watch shop | head`: the reader has all it needs.
            return ExitCode::SUCCESS;
        }
        let code = exit_code(error);
        if self.json {
            // Nothing is left to do if stdout is gone as well.
            let _ = self.line(&error_json(error).to_string());
        } else {
            eprintln!(
                "{}",
                error_text(error, wants_colour(io::stderr().is_terminal()))
            );
        }
        ExitCode::from(code)
    }
}

/// Colours: only on a terminal, and not if the user said no (<https://no-color.org>).
pub fn wants_colour(terminal: bool) -> bool {
    let said_no = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    terminal && !said_no && !dumb
}

/// Whether the reader of stdout went away.
pub fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<io::Error>()
        .is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

fn exit_code(error: &anyhow::Error) -> u8 {
    if is_wrong_usage(error) {
        return USAGE;
    }
    if error.is::<NotInTime>() {
        return UNREACHABLE;
    }
    match client_error(error).map(Error::kind) {
        Some(Kind::BadArgument) => USAGE,
        Some(Kind::Refused(_) | Kind::Forbidden) | None => REFUSED,
        Some(_) => UNREACHABLE,
    }
}

fn is_wrong_usage(error: &anyhow::Error) -> bool {
    error.is::<WrongUsage>() || error.is::<WrongFile>()
}

/// The error of the cluster or of its client, if it is one.
fn client_error(error: &anyhow::Error) -> Option<&Error> {
    let explained = error.downcast_ref::<Explained>();
    explained
        .map(|it| &it.error)
        .or_else(|| error.downcast_ref())
}

/// The contract's error object; also for errors that no node has sent.
pub fn error_json(error: &anyhow::Error) -> serde_json::Value {
    let Some(client_error) = client_error(error) else {
        // The command itself refuses, as the cluster would.
        if let Some(refusal) = error.downcast_ref::<ApiError>() {
            return serde_json::json!({ "error": refusal });
        }
        let code = match is_wrong_usage(error) {
            true => Code::BadRequest.as_str(),
            false => "failed",
        };
        return serde_json::json!({"error": {"code": code, "message": format!("{error:#}")}});
    };
    let code = client_error.kind().code();
    let message = match error.downcast_ref::<Explained>() {
        Some(explained) => explained.message.clone(),
        // Not `Display`: it begins with the kind, which stands in `code` already.
        None => format!("{}{}", client_error.message(), hint(client_error)),
    };
    let api = match client_error.api() {
        Some(api) => ApiError {
            code,
            message,
            ..api.clone()
        },
        None => ApiError::new(code, message),
    };
    serde_json::json!({ "error": api })
}

/// The error as people read it.
pub fn error_text(error: &anyhow::Error, colour: bool) -> String {
    let label = if colour {
        "\u{1b}[1;31merror\u{1b}[0m"
    } else {
        "error"
    };
    let ours = client_error(error);
    let retry = ours.and_then(Error::retry_after).map(|after| {
        format!(
            " (try again in {})",
            nowserving_rehearse::duration(after.as_millis() as u64)
        )
    });
    let hint = ours.map(hint).unwrap_or_default();
    format!("{label}: {error:#}{hint}{}", retry.unwrap_or_default())
}

/// Advice for an error that says only what failed.
fn hint(error: &Error) -> &'static str {
    match error.kind() {
        Kind::Connection => {
            "; is a cluster running? --nats or NOWSERVING_NATS says where its NATS server is"
        }
        Kind::Refused(Code::LineNotEmpty) => {
            "; `nowserving line delete --force` ends them with reason `closed`"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn other_errors_are_printed_too() {
        let error = anyhow::anyhow!("inner").context("outer");
        assert_eq!(exit_code(&error), REFUSED);
        assert_eq!(error_json(&error)["error"]["message"], "outer: inner");
        assert_eq!(error_text(&error, false), "error: outer: inner");
        assert!(error_text(&error, true).starts_with('\u{1b}'));
    }

    #[test]
    fn a_refusal_by_the_command_itself_has_the_clusters_form() {
        let error = anyhow::Error::from(ApiError::new(Code::LineFull, "no room"));
        assert_eq!(exit_code(&error), REFUSED);
        let json = serde_json::json!({"error": {"code": "line_full", "message": "no room"}});
        assert_eq!(error_json(&error), json);
        assert_eq!(error_text(&error, false), "error: line_full: no room");
    }

    #[test]
    fn wrong_usage_found_late_is_exit_code_2_too() {
        let errors: [anyhow::Error; 2] = [
            WrongUsage("x".to_owned()).into(),
            WrongFile("x".to_owned()).into(),
        ];
        for error in errors {
            assert_eq!(exit_code(&error), USAGE);
            assert_eq!(error_json(&error)["error"]["code"], "bad_request");
        }
    }

    #[test]
    fn a_closed_pipe_is_no_error() {
        let error = anyhow::Error::from(io::Error::from(io::ErrorKind::BrokenPipe));
        assert!(is_broken_pipe(&error));
        assert!(!is_broken_pipe(&anyhow::anyhow!("else")));
    }

    #[tokio::test]
    async fn an_unreachable_cluster_is_exit_code_3() {
        // Port 1 of this machine: nobody listens there.
        let error = nowserving_client::Client::connect("nats://user:secret@127.0.0.1:1")
            .await
            .err()
            .unwrap();
        let error = anyhow::Error::from(error);
        assert_eq!(exit_code(&error), UNREACHABLE);
        let json = error_json(&error);
        assert_eq!(json["error"]["code"], "unavailable");
        assert!(!json.to_string().contains("secret"), "{json}");
        for text in [json.to_string(), error_text(&error, false)] {
            assert!(text.contains("127.0.0.1:1"), "{text}");
            assert!(text.contains("is a cluster running?"), "{text}");
        }
        assert!(error_text(&error, false).starts_with("error: unavailable: "));
    }

    #[tokio::test]
    async fn a_malformed_url_is_wrong_usage() {
        let error = nowserving_client::Client::connect("nats://a b")
            .await
            .err()
            .unwrap();
        assert_eq!(exit_code(&error.into()), USAGE);
    }
}

//! The operations of users, as their backends call them: one command each.

use std::process::ExitCode;

use clap::{ArgGroup, Args, Subcommand, ValueEnum};
use nowserving_client::{Consistency, Key, LaneName, StatusRequest, TokenBy};
use nowserving_line::NUMBER_MAX;
use nowserving_line::PER_VISIT_MAX;

use crate::{secret, tables};
use nowserving_terminal::global::Global;
use nowserving_terminal::number;
use nowserving_terminal::output::{Output, WrongUsage};

/// Of the tickets of one `seen`, more than a request may have.
const TICKETS_BYTES_MAX: usize = 65_536;

/// One operation each.
#[derive(Debug, Subcommand)]
pub enum UserCommand {
    /// Takes a number in a line; prints the ticket.
    ///
    /// With a key that has a live token already, that token is answered again: running this twice is
    /// the same as running it once.
    #[command(
        group = ArgGroup::new("user").args(["key", "anonymous"]).required(true),
        after_help = "\
Examples:
  nowserving enter shop-1 --key order-4711
  TICKET=$(nowserving enter shop-1 --key order-4711 --json | jq -r .ticket)"
    )]
    Enter {
        /// The line.
        line: String,
        /// Identifies the user in your own terms (a user or order id), 1 to 128 bytes.
        #[arg(long)]
        key: Option<String>,
        /// Instead of --key: enters without one. Each run takes another number.
        #[arg(long)]
        anonymous: bool,
        /// The lane; by default the line's default lane.
        #[arg(long)]
        lane: Option<String>,
    },
    /// Asks to be told when a full line has room for a key: the line event `room` names it then.
    #[command(after_help = "Example:\n  nowserving callback shop-1 --key order-4711")]
    Callback {
        /// The line.
        line: String,
        /// Identifies the user in your own terms, as with `enter`.
        #[arg(long)]
        key: String,
        /// The lane; by default the line's default lane.
        #[arg(long)]
        lane: Option<LaneName>,
    },
    /// Finds the live token of a key, without entering.
    #[command(after_help = "Example:\n  nowserving find shop-1 --key order-4711")]
    Find {
        /// The line.
        line: String,
        /// The key it entered with.
        #[arg(long)]
        key: String,
    },
    /// Shows the status of a token, and marks it as seen.
    #[command(
        group = ArgGroup::new("token").args(["ticket", "key"]).required(true),
        // Clap's own puts the line, which comes first, behind the group.
        override_usage = "nowserving status [OPTIONS] <LINE> <TICKET|--key <KEY>>",
        after_help = "\
Examples:
  nowserving status shop-1 $TICKET
  nowserving status shop-1 - < ticket.txt
  nowserving status shop-1 --key order-4711
  nowserving status shop-1 $TICKET --consistency local"
    )]
    Status {
        /// The line.
        line: String,
        /// What `enter` printed; `-` reads it from standard input, where other users of the machine cannot see it.
        // Base64url: may begin with a dash.
        #[arg(allow_hyphen_values = true)]
        ticket: Option<String>,
        /// Instead of the ticket: the key it entered with.
        #[arg(long)]
        key: Option<String>,
        /// How fresh the answer must be. `local` does not mark the token as seen.
        #[arg(long, value_enum, default_value_t)]
        consistency: Freshness,
        /// Prints a signed pass, too, while the token holds a seat.
        #[arg(long, conflicts_with = "key")]
        pass: bool,
    },
    /// Marks many tokens as seen, as `status` of each does.
    #[command(after_help = "\
Examples:
  nowserving seen shop-1 $TICKET_1 $TICKET_2
  nowserving seen shop-1 - < tickets.txt")]
    Seen {
        /// The line.
        line: String,
        /// What `enter` printed, 256 at most; a single `-` reads them from standard input, where other users of the
        /// machine cannot see them.
        #[arg(required = true)]
        tickets: Vec<String>,
    },
    /// Claims the seat of an admitted token: goes into checkout. Prints the epoch.
    #[command(after_help = "\
Examples:
  nowserving claim shop-1 $TICKET
  nowserving claim shop-1 $TICKET --pass --json | jq -r .pass")]
    Claim {
        #[command(flatten)]
        token: TokenArgs,
        /// Prints a signed pass, too, by which others know that the token holds a seat.
        #[arg(long)]
        pass: bool,
    },
    /// Keeps a claimed seat for longer.
    #[command(after_help = "Example:\n  nowserving renew shop-1 $TICKET --epoch 17")]
    Renew {
        #[command(flatten)]
        token: TokenArgs,
        /// What `claim` printed.
        #[arg(long, value_parser = number::between::<u64>(0..=NUMBER_MAX))]
        epoch: u64,
    },
    /// Completes a checkout: the seat is free for the next one.
    #[command(after_help = "Example:\n  nowserving complete shop-1 $TICKET --epoch 17")]
    Complete {
        #[command(flatten)]
        token: TokenArgs,
        /// What `claim` printed; if given, it must still be the current one.
        #[arg(long, value_parser = number::between::<u64>(0..=NUMBER_MAX))]
        epoch: Option<u64>,
        /// How many units of the quota were used (default: all that the seat reserves, see --quota-per-visit).
        #[arg(long, value_parser = number::between::<u32>(0..=PER_VISIT_MAX.into()))]
        units: Option<u32>,
    },
    /// Leaves the line, waiting or in checkout.
    #[command(after_help = "Example:\n  nowserving leave shop-1 $TICKET")]
    Leave(TokenArgs),
    /// Moves a waiting token into a lane that allows it (`--lane card:jump`). Prints the new ticket.
    #[command(
        group = ArgGroup::new("token").args(["ticket", "key"]).required(true),
        override_usage = "nowserving jump [OPTIONS] --to <LANE> <LINE> <TICKET|--key <KEY>>",
        after_help = "\
Examples:
  nowserving jump shop-1 $TICKET --to card
  nowserving jump shop-1 --key order-4711 --to card"
    )]
    Jump {
        /// The line.
        line: String,
        /// What `enter` printed; `-` reads it from standard input, where other users of the machine cannot see it.
        // Base64url: may begin with a dash.
        #[arg(allow_hyphen_values = true)]
        ticket: Option<String>,
        /// Instead of the ticket: the key it entered with.
        #[arg(long)]
        key: Option<String>,
        /// The lane that it shall be in.
        #[arg(long, value_name = "LANE")]
        to: LaneName,
    },
    /// Shows a line's board and the settings that users may see.
    #[command(after_help = "Example:\n  nowserving info shop-1")]
    Info {
        /// The line.
        line: String,
        /// How fresh the answer has to be.
        #[arg(long, value_enum, default_value_t)]
        consistency: Freshness,
    },
}

impl UserCommand {
    /// The line that the command is about.
    pub fn line(&self) -> &str {
        match self {
            UserCommand::Enter { line, .. }
            | UserCommand::Callback { line, .. }
            | UserCommand::Find { line, .. }
            | UserCommand::Status { line, .. }
            | UserCommand::Seen { line, .. }
            | UserCommand::Jump { line, .. }
            | UserCommand::Info { line, .. } => line,
            UserCommand::Renew { token, .. }
            | UserCommand::Complete { token, .. }
            | UserCommand::Claim { token, .. }
            | UserCommand::Leave(token) => &token.line,
        }
    }
}

#[derive(Debug, Args)]
pub struct TokenArgs {
    /// The line.
    line: String,
    /// What `enter` printed; `-` reads it from standard input, where other users of the machine cannot see it.
    // Base64url: may begin with a dash.
    #[arg(allow_hyphen_values = true)]
    ticket: String,
}

/// [`Consistency`] as a flag.
#[derive(Debug, Clone, Copy, Default, ValueEnum)]
pub enum Freshness {
    /// The leader's state.
    #[default]
    Leader,
    /// Confirmed by a majority first.
    Linearizable,
    /// Any node's, possibly behind.
    Local,
}

impl From<Freshness> for Consistency {
    fn from(freshness: Freshness) -> Consistency {
        match freshness {
            Freshness::Leader => Consistency::Leader,
            Freshness::Linearizable => Consistency::Linearizable,
            Freshness::Local => Consistency::Local,
        }
    }
}

fn checked_key(key: String) -> Result<Key, WrongUsage> {
    // The message begins with the field, which is named like the flag.
    Key::new(key.into_bytes()).map_err(|error| WrongUsage(format!("--{}", error.message)))
}

fn token_by(ticket: Option<String>, key: Option<String>) -> anyhow::Result<TokenBy> {
    Ok(match key {
        Some(key) => TokenBy::Key(checked_key(key)?),
        None => TokenBy::Ticket(secret::ticket(ticket.unwrap_or_default())?),
    })
}

/// Runs one of them.
pub async fn run(
    command: UserCommand,
    global: &Global,
    output: &Output,
) -> anyhow::Result<ExitCode> {
    let open = async |line: &str| anyhow::Ok(global.connect().await?.line(line)?);
    let of_token = async |token: TokenArgs| {
        let ticket = secret::ticket(token.ticket)?;
        anyhow::Ok((open(&token.line).await?, ticket))
    };
    let status = match command {
        UserCommand::Enter {
            line,
            key,
            anonymous,
            lane,
        } => {
            let key = key.filter(|_| !anonymous);
            let key = key.map(checked_key).transpose()?;
            let lane = lane.as_deref().map(LaneName::try_from).transpose();
            let lane = lane.map_err(|error| WrongUsage(format!("--lane: {error}")))?;
            open(&line).await?.enter_with(key, lane).await?
        }
        UserCommand::Callback { line, key, lane } => {
            let key = checked_key(key)?.into_bytes();
            let reply = open(&line).await?.callback(key, lane).await?;
            output.answer(&reply, |reply| tables::callback(reply, output))?;
            return Ok(ExitCode::SUCCESS);
        }
        UserCommand::Find { line, key } => open(&line).await?.find(key).await?,
        UserCommand::Status {
            line,
            ticket,
            key,
            consistency,
            pass,
        } => {
            let token = token_by(ticket, key)?;
            let request = StatusRequest {
                consistency: Some(consistency.into()),
                pass,
                ..StatusRequest::new(token)
            };
            open(&line).await?.status_with(request).await?
        }
        UserCommand::Seen { line, mut tickets } => {
            if tickets == ["-"] {
                let text = secret::argument_or_stdin(None, TICKETS_BYTES_MAX, "list of tickets")?;
                tickets = text.split_whitespace().map(str::to_owned).collect();
            }
            let reply = open(&line).await?.seen(tickets).await?;
            output.answer(&reply, |it| {
                let (gone, invalid) = (it.gone.len(), it.invalid.len());
                format!("{} seen, {gone} gone, {invalid} invalid", it.seen)
            })?;
            return Ok(ExitCode::SUCCESS);
        }
        UserCommand::Claim { token, pass } => {
            let (line, ticket) = of_token(token).await?;
            match pass {
                true => line.claim_with_pass(&ticket).await?,
                false => line.claim(&ticket).await?,
            }
        }
        UserCommand::Renew { token, epoch } => {
            let (line, ticket) = of_token(token).await?;
            line.renew(&ticket, epoch).await?
        }
        UserCommand::Complete {
            token,
            epoch,
            units,
        } => {
            let (line, ticket) = of_token(token).await?;
            line.complete(&ticket, epoch, units).await?
        }
        UserCommand::Leave(token) => {
            let (line, ticket) = of_token(token).await?;
            line.leave(&ticket).await?
        }
        UserCommand::Jump {
            line,
            ticket,
            key,
            to,
        } => {
            let token = token_by(ticket, key)?;
            open(&line).await?.jump(token, to).await?
        }
        UserCommand::Info { line, consistency } => {
            let info = open(&line).await?.info_with(consistency.into()).await?;
            output.answer(&info, |info| tables::info(info, output))?;
            return Ok(ExitCode::SUCCESS);
        }
    };
    output.answer(&status, |status| tables::status(status, output))?;
    Ok(ExitCode::SUCCESS)
}

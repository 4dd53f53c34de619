//! The draw at the opening of a line, as `info` and `show` have it.

use std::borrow::Cow;

use data_encoding::HEXLOWER;
use nowserving_line as line;
use serde::{Deserialize, Serialize};

/// The draw at the opening of a line. Seeds and hashes are hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DrawReply {
    /// `awaited`, `running` or `done`; later releases may have more.
    pub state: Cow<'static, str>,
    /// The SHA-256 of the seed; null until a leader has brought the seed in.
    pub commitment: Option<String>,
    /// The seed, once the line has opened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<String>,
    /// The setting `draw_beacon` at the opening, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub beacon: Option<String>,
    /// How many waited at the opening.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub took_part: Option<u64>,
    /// How many of them are drawn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drawn: Option<u64>,
    /// The digest of all who took part, once it is done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
}

impl DrawReply {
    /// The draw of a line; `None` if it opens, or has opened, in order.
    pub fn new(line: &line::Line) -> Option<DrawReply> {
        let draw = line.draw()?;
        let hex = |hash: line::Hash| HEXLOWER.encode(&hash);
        Some(DrawReply {
            state: draw.state.as_str().into(),
            commitment: draw.commitment.map(hex),
            seed: draw.seed.map(hex),
            beacon: draw.beacon,
            took_part: draw.took_part,
            drawn: draw.drawn,
            digest: draw.digest.map(hex),
        })
    }
}

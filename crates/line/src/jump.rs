//! A waiting token moves into another lane on behalf of its holder: a card or a membership opens that lane to it.

use crate::line::Line;
use crate::transitions::ApplyCtx;
use crate::{BadField, Forbidden, LaneName, MOVES_MAX, MovedBy, Refused, TokenBy, TokenRef};

impl Line {
    pub(crate) fn jump(
        &mut self,
        by: &TokenBy,
        to: &LaneName,
        ctx: &mut ApplyCtx<'_>,
    ) -> Result<TokenRef, Refused> {
        let to_id = self.listed_id(to);
        let to_id = to_id.ok_or_else(|| self.no_lane("to", to))?;
        let at = self.token_by(by)?;
        self.locate(at)?;
        let at = self.resolve(at);
        // A repetition has the same answer, whatever has become of the token or of the settings.
        if at.lane == to_id {
            return Ok(at);
        }
        let live = self.open_live(at)?;
        let (waits, jumps, moves) = (!live.holds_seat(), live.jumps, live.moved_from.len());
        let mut lanes = self.settings.lanes.iter();
        if !lanes.any(|set| set.name == *to && set.jump) {
            return Err(Forbidden::Jump.into());
        }
        if u32::from(jumps) >= self.settings.jumps_max {
            return Err(Forbidden::JumpsMax.into());
        }
        if !waits {
            return Err(Refused::NotWaiting);
        }
        if moves >= MOVES_MAX {
            return Err(BadField::new("to", "moved at most 16 times").into());
        }
        self.check_moves_into(to_id)?;
        self.reissue(at, to_id, MovedBy::Jump, ctx)
    }
}

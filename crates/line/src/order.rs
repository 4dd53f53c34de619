//! The lanes of a line: which there are, and which is next.

use crate::lane::Lane;
use crate::line::Line;
use crate::settings::lane_names;
use crate::{BadField, LANE_TABLE_MAX, LaneName, LaneSettings};

impl Line {
    /// The lanes that the settings have, in their order, with their ids.
    pub(crate) fn listed(&self) -> impl Iterator<Item = (u8, &Lane, &LaneSettings)> {
        let ids = self.order.iter().zip(&self.settings.lanes);
        ids.filter_map(|(id, set)| Some((*id, self.lanes.get(usize::from(*id))?, set)))
    }

    /// The lane whose first waiting token is next: absolute ones first, then the least order key,
    /// a tie to the one listed first.
    pub(crate) fn next_lane(&self) -> Option<u8> {
        let keyed = self.listed().filter_map(|(id, lane, set)| {
            let entered_at_ms = lane.waiting.first_entered_at_ms()?;
            Some((!set.absolute, order_key(entered_at_ms, set.boost_ms), id))
        });
        // Of equals `min_by_key` takes the first.
        let next = keyed.min_by_key(|(yields, key, _)| (*yields, *key));
        next.map(|(_, _, id)| id)
    }

    /// A lane by its name, also one that the settings have no more.
    pub(crate) fn lane_id(&self, name: &LaneName) -> Option<u8> {
        let mut lanes = (0..).zip(&self.lanes);
        let found = lanes.find(|(_, lane)| lane.name == *name);
        found.map(|(id, _)| id)
    }

    /// A lane that the settings have.
    pub(crate) fn listed_id(&self, name: &LaneName) -> Option<u8> {
        let mut listed = self.listed();
        let found = listed.find(|(_, lane, _)| lane.name == *name);
        found.map(|(id, _, _)| id)
    }

    /// What is wrong with a field that names a lane which the settings do not have.
    pub fn no_lane(&self, field: &'static str, name: &LaneName) -> BadField {
        let lanes = lane_names(&self.settings.lanes);
        BadField::new(field, format!("no lane \"{name}\"; the line has {lanes}"))
    }

    /// Whether these can be the lanes: none with live tokens is missing, and the table has room for
    /// those that are new to it.
    pub(crate) fn check_lanes(&self, lanes: &[LaneSettings]) -> Result<(), BadField> {
        let kept = |lane: &Lane| lanes.iter().any(|set| set.name == lane.name);
        let in_use = self
            .lanes
            .iter()
            .find(|lane| !lane.live.is_empty() && !kept(lane));
        if let Some(lane) = in_use {
            let limit = format!("`{}` stays until nobody is in it", lane.name);
            return Err(BadField::new("lanes", limit));
        }
        let new = lanes.iter().filter(|set| self.lane_id(&set.name).is_none());
        if self.lanes.len() + new.count() > LANE_TABLE_MAX {
            let limit = format!("at most {LANE_TABLE_MAX} names over the life of a line");
            return Err(BadField::new("lanes", limit));
        }
        Ok(())
    }

    /// Makes the table and the order follow the settings, which [`Line::check_lanes`] has passed.
    pub(crate) fn order_lanes(&mut self) {
        self.order.clear();
        for i in 0..self.settings.lanes.len() {
            let name = self.settings.lanes[i].name.clone();
            let id = self.lane_id(&name).unwrap_or_else(|| {
                self.lanes.push(Lane::new(name));
                (self.lanes.len() - 1) as u8
            });
            self.order.push(id);
        }
    }
}

/// By what the first waiting token of a lane competes with those of others.
pub(crate) fn order_key(entered_at_ms: u64, boost_ms: u64) -> i128 {
    i128::from(entered_at_ms) - i128::from(boost_ms)
}

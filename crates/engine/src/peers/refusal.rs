//! Why a node is refused by its peers, and whether it can come back under its number.

/// Why the frames of a node are not taken.
#[derive(Debug, Clone, Default, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Refusal {
    pub reason: String,
    /// Its disk is another one than the known one, or an older copy: it has lost its promises, and must never take
    /// part under its number again. Other refusals may pass.
    pub disk: bool,
    /// Its cluster gives way to an older one of the same name.
    pub other_cluster: bool,
    /// It is no member by the members that were known where its frame was checked.
    pub no_member: bool,
}

impl Refusal {
    #[must_use]
    pub fn passing(reason: String) -> Refusal {
        Refusal {
            reason,
            ..Refusal::default()
        }
    }

    #[must_use]
    pub fn of_disk(reason: String) -> Refusal {
        Refusal {
            reason,
            disk: true,
            ..Refusal::default()
        }
    }

    #[must_use]
    pub fn of_stranger(id: u64) -> Refusal {
        Refusal {
            reason: format!("node {id} is no member"),
            no_member: true,
            ..Refusal::default()
        }
    }

    /// Of a frame of another cluster, which has the same name and key.
    #[must_use]
    pub fn of_other_cluster(from: u64) -> Refusal {
        Refusal::passing(format!(
            "node {from} on the same NATS and prefix is of another cluster of the same name"
        ))
    }

    pub(crate) fn of_cluster(reason: String) -> Refusal {
        Refusal {
            reason,
            other_cluster: true,
            ..Refusal::default()
        }
    }

    /// Whether the node takes part again only under a new number, and without what its disk holds. A node that is
    /// refused for its configuration needs that corrected, and must keep its disk.
    #[must_use]
    pub fn needs_number(&self) -> bool {
        self.disk || self.other_cluster
    }
}

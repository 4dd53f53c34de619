//! What the server of a connection takes in one message (`max_payload`).

use async_nats::Client;

/// The limit of the server to which one client is connected. async-nats learns it when it connects, and refuses to
/// publish what is larger.
#[derive(Debug, Clone)]
pub struct PayloadLimit {
    client: Client,
}

impl PayloadLimit {
    #[must_use]
    pub fn of(client: &Client) -> Self {
        PayloadLimit {
            client: client.clone(),
        }
    }

    /// In bytes, headers included.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.client.max_payload()
    }
}

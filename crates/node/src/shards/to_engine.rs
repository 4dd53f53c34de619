//! Where inputs go.

use std::sync::Arc;

use nowserving_engine::Input;

/// The engine has ended, or has not begun: the input comes back.
#[derive(Debug)]
pub struct NoEngine(pub Box<Input>);

/// Gives inputs to the engine.
///
/// The engine takes one at once, on the thread of the caller, which is the loop's. What comes of it leaves at the end of
/// the turn.
#[derive(Clone)]
pub struct ToEngine(Arc<dyn Fn(Input) -> Result<(), NoEngine> + Send + Sync>);

impl ToEngine {
    pub fn new(give: impl Fn(Input) -> Result<(), NoEngine> + Send + Sync + 'static) -> Self {
        ToEngine(Arc::new(give))
    }

    /// Gives the engine an input.
    ///
    /// # Errors
    /// [`NoEngine`].
    pub fn send(&self, input: Input) -> Result<(), NoEngine> {
        (self.0)(input)
    }
}

impl std::fmt::Debug for ToEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ToEngine")
    }
}

//! A vector in pages of equal size.

/// The elements of a page.
const PAGE: usize = 1_024;

/// It grows a page at a time: a plain vector moves all of its elements when it doubles, which takes tenths of a second
/// with ten million counters.
#[derive(Debug, Clone)]
pub(crate) struct Paged<T> {
    /// All but the last one are full.
    pages: Vec<Vec<T>>,
    len: usize,
}

impl<T> Paged<T> {
    pub fn new() -> Self {
        Self {
            pages: Vec::new(),
            len: 0,
        }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn push(&mut self, element: T) {
        if self.len.is_multiple_of(PAGE) {
            self.pages.push(Vec::with_capacity(PAGE));
        }
        if let Some(page) = self.pages.last_mut() {
            page.push(element);
            self.len += 1;
        }
    }

    pub fn get(&self, place: u32) -> Option<&T> {
        let place = place as usize;
        self.pages.get(place / PAGE)?.get(place % PAGE)
    }

    pub fn get_mut(&mut self, place: u32) -> Option<&mut T> {
        let place = place as usize;
        self.pages.get_mut(place / PAGE)?.get_mut(place % PAGE)
    }
}

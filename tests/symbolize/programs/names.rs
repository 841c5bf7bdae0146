// Generic, trait and closure functions, so that both of Rust's manglings have something to say.
trait Shape {
    fn area(&self) -> u64;
}

struct Square<T> {
    side: T,
}

impl Shape for Square<u64> {
    #[inline(never)]
    fn area(&self) -> u64 {
        self.side * self.side + std::hint::black_box(1)
    }
}

#[inline(never)]
fn apply<F: Fn(u64) -> u64>(f: F, x: u64) -> u64 {
    f(std::hint::black_box(x))
}

mod geometry {
    #[inline(never)]
    pub fn double(x: u64) -> u64 {
        std::hint::black_box(x) * 2
    }
}

fn main() {
    let square: Box<dyn Shape> = Box::new(Square { side: std::env::args().count() as u64 });
    println!("{}", apply(|x| geometry::double(x) + 1, square.area()));
}

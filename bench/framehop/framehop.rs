//! framehop, a peer of the local walk, as bench_local calls it: from registers, in the same process.

use framehop::x86_64::{CacheX86_64, UnwindRegsX86_64, UnwinderX86_64};
use framehop::{ExplicitModuleSectionInfo, Module, MustNotAllocateDuringUnwind, Unwinder};
use std::cell::UnsafeCell;
use std::ops::Range;
use std::slice;

/// A module of the process; addresses are those of memory.
#[repr(C)]
pub struct LoadedModule {
    start: u64,
    end: u64,
    bias: u64,
    text: [u64; 2],
    eh_frame: [u64; 2],
    eh_frame_hdr: [u64; 2],
}

type Policy = MustNotAllocateDuringUnwind;

struct State {
    unwinder: UnwinderX86_64<&'static [u8], Policy>,
    cache: CacheX86_64<Policy>,
}

struct Global(UnsafeCell<Option<State>>);
unsafe impl Sync for Global {} // the benchmark has one thread
static STATE: Global = Global(UnsafeCell::new(None));

fn bytes(range: [u64; 2]) -> Option<&'static [u8]> {
    (range[1] > range[0])
        .then(|| unsafe { slice::from_raw_parts(range[0] as *const u8, (range[1] - range[0]) as usize) })
}

/// Takes the modules that are loaded now.
#[no_mangle]
pub unsafe extern "C" fn framehop_prepare(modules: *const LoadedModule, count: usize) {
    let mut unwinder = UnwinderX86_64::new();
    for module in slice::from_raw_parts(modules, count) {
        let svma = |range: [u64; 2]| -> Option<Range<u64>> {
            (range[1] > range[0]).then(|| range[0].wrapping_sub(module.bias)..range[1].wrapping_sub(module.bias))
        };
        unwinder.add_module(Module::new(
            String::new(),
            module.start..module.end,
            module.bias,
            ExplicitModuleSectionInfo {
                base_svma: 0,
                text_svma: svma(module.text),
                text: bytes(module.text),
                eh_frame_svma: svma(module.eh_frame),
                eh_frame: bytes(module.eh_frame),
                eh_frame_hdr_svma: svma(module.eh_frame_hdr),
                eh_frame_hdr: bytes(module.eh_frame_hdr),
                ..Default::default()
            },
        ));
    }
    *STATE.0.get() = Some(State { unwinder, cache: CacheX86_64::new_in() });
}

/// Writes addresses from these registers on; stack memory is read from `sp` to before `stack_end`.
#[no_mangle]
pub unsafe extern "C" fn framehop_unwind(
    ip: u64,
    sp: u64,
    bp: u64,
    stack_end: u64,
    out: *mut u64,
    capacity: usize,
) -> usize {
    let Some(state) = (*STATE.0.get()).as_mut() else { return 0 };
    let mut read_stack = |address: u64| {
        if address < sp || address > stack_end - 8 {
            return Err(());
        }
        Ok(unsafe { *(address as *const u64) })
    };
    let mut frames =
        state.unwinder.iter_frames(ip, UnwindRegsX86_64::new(ip, sp, bp), &mut state.cache, &mut read_stack);
    let mut count = 0;
    while count < capacity {
        let Ok(Some(frame)) = frames.next() else { break };
        *out.add(count) = frame.address();
        count += 1;
    }
    count
}

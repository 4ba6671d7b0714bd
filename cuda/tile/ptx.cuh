// PTX that C++ has no word for: one instruction per function.
#pragma once

namespace atlas::ptx {

// Blocks until every kernel this one depends on has finished and its writes are visible.
__device__ inline void griddepcontrol_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// Lets the next kernel of the stream start its prologue.
__device__ inline void griddepcontrol_launch_dependents() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

}  // namespace atlas::ptx

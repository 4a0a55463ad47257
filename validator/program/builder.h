// Writes a Program: places tensors in the arenas and appends operations. Regions get their
// addresses when everything is known: dynamic arena = fixed regions, rings of slots, frame.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "validator/program/program.h"

namespace shardplan {

struct TensorSpec {
  Component component = Component::kTemporaries;
  std::string name = {};
  DType dtype = DType::kBf16;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
};

// Bytes that a tensor of this kind takes in an arena.
std::int64_t padded_bytes(const TensorSpec& spec);

// Rings of equal slots in the dynamic arena, by how long a microbatch stays in them.
enum class SlotRing {
  kSaved,    // from forward to backward
  kInputs,   // from forward to a weight gradient that is an action of its own: inputs of products
  kPending,  // from backward to that weight gradient: gradients of products, inputs written again
};
inline constexpr std::int64_t kNumRings = 3;

struct Slot {
  SlotRing ring = SlotRing::kSaved;
  std::int64_t index = -1;
};

// An address that several tensors use, one after the other.
struct Cell {
  Placement placement = Placement::kFrame;
  Slot slot = {};
  std::int64_t offset = 0;  // from the start of the fixed regions, the slot or the frame
  std::int64_t bytes = 0;
  bool stands = false;  // holds memory in the whole step: each tensor stays until the next comes
};

// What places tensors and takes operations is virtual: tests make the mistakes of a wrong pass
// there.
class ProgramBuilder {
 public:
  ProgramBuilder() = default;
  virtual ~ProgramBuilder() = default;
  ProgramBuilder(const ProgramBuilder&) = delete;
  ProgramBuilder& operator=(const ProgramBuilder&) = delete;

  Program& program() { return program_; }
  const Program& program() const { return program_; }

  virtual View persistent(const TensorSpec& spec);  // alive for the whole program

  virtual Cell fixed_cell(std::int64_t bytes);
  Cell standing_cell(std::int64_t bytes);  // a fixed cell that is never free
  Cell frame_cell(std::int64_t bytes);     // pushed on the frame
  virtual View place(const Cell& cell,
                     const TensorSpec& spec);  // a new lifetime at the cell's address
  virtual View push(const TensorSpec& spec);   // frame_cell and place
  std::int64_t frame_mark() const { return frame_bytes_; }
  virtual void pop_to(std::int64_t mark) { frame_bytes_ = mark; }

  // The lowest free slot; tensors are placed in it one after the other until it is freed.
  virtual Slot take_slot(SlotRing ring);
  virtual void free_slot(const Slot& slot);
  virtual View keep(const Slot& slot, const TensorSpec& spec);

  virtual void emit(Operation operation);
  void cut(std::string label);

  // Resolves addresses, fuses, takes lifetimes and orders the streams.
  Program finish();

 private:
  struct Slots {
    std::vector<std::int64_t> bytes = {};  // by slot, of the current use
    std::vector<bool> taken = {};
    std::int64_t largest_bytes = 0;

    std::int64_t total_bytes() const {
      return static_cast<std::int64_t>(bytes.size()) * largest_bytes;
    }
  };
  Slots& slots_of(SlotRing ring) { return rings_[static_cast<std::size_t>(ring)]; }
  View add(const TensorSpec& spec, const Cell& cell, Arena arena);
  void resolve_addresses();
  void resolve_lifetimes();
  void extend_lifetimes();

  Program program_;
  std::vector<Cell> cells_;  // by tensor
  std::int64_t persistent_bytes_ = 0;
  std::int64_t fixed_bytes_ = 0;
  std::int64_t frame_bytes_ = 0;
  std::int64_t largest_frame_bytes_ = 0;
  std::array<Slots, kNumRings> rings_;
};

// Pops what its scope pushed on the frame.
class FrameScope {
 public:
  explicit FrameScope(ProgramBuilder& builder) : builder_(builder), mark_(builder.frame_mark()) {}
  ~FrameScope() { builder_.pop_to(mark_); }
  FrameScope(const FrameScope&) = delete;
  FrameScope& operator=(const FrameScope&) = delete;

 private:
  ProgramBuilder& builder_;
  std::int64_t mark_;
};

// An addition followed by the norm of its result becomes one operation, where their memory allows.
void fuse_add_norm(Program& program);

}  // namespace shardplan

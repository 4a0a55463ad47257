// One rank's program on one GPU: two arenas, one CUDA stream for every stream of the program, the
// communicators that it needs. Nothing is allocated after these have been used once.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kernels/attention/call.h"
#include "kernels/gemm/gemm.h"
#include "validator/cuda/communicator.h"
#include "validator/cuda/pace.h"
#include "validator/cuda/peers.h"
#include "validator/program/communicators.h"
#include "validator/program/program.h"

namespace shardplan {

// The same program with fp32 wherever it has bf16, at twice the bytes: what parity is checked with.
Program widened(Program program);

// A View on device memory.
struct DeviceView {
  void* data = nullptr;  // nullptr: absent
  DType dtype = DType::kBf16;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t stride = 0;

  bool present() const { return data != nullptr; }
  std::int64_t elements() const { return rows * cols; }
  bool contiguous() const { return stride == cols || rows == 1; }
  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
};

// Part `index` of `count` equal parts of a contiguous view.
DeviceView part_of(const DeviceView& view, std::int64_t index, std::int64_t count);
// The member's of views by member, or its part of the only one.
DeviceView part_of(const std::vector<DeviceView>& views, std::int64_t member, std::int64_t size);

// Called around the launch of every operation of a step; empty: nothing.
struct LaunchHooks {
  std::function<void(std::int64_t operation, cudaStream_t stream)> before = {};
  std::function<void(std::int64_t operation, cudaStream_t stream)> after = {};
};

// attention.cpp, fp8.cpp and first_launches.cpp have what it does for operations of those names,
// and before the first step.
class CudaRank {
 public:
  // Commits both arenas and nothing else. Throws CudaError where memory is short.
  CudaRank(Program program, int device);
  ~CudaRank();
  CudaRank(const CudaRank&) = delete;
  CudaRank& operator=(const CudaRank&) = delete;

  // Handles, products, tables; then every kernel of the program once, on zeros, so that what
  // libraries and modules take is there before the first step. Throws std::logic_error, naming the
  // operation, for what has no kernel.
  void prepare(AttentionKernels kernels = AttentionKernels::kFastest,
               const GemmChoices& choices = {});
  // What attention runs on, after prepare(): "cuDNN 9.19.0", "own kernels: " and why, or of both
  // how many calls. Empty where the program has no attention.
  std::string attention_used() const;
  // Of the program's matrix products: "204 of 204 on measured algorithms".
  std::string products_used() const;
  // The communicators that the program needs, in the order of `uses`; until they are there, or for
  // good, collectives move nothing.
  const std::vector<CommunicatorUse>& uses() const { return uses_; }
  void connect(std::size_t use, std::unique_ptr<CudaCommunicator> communicator);
  // Launches the first call of every kind on one communicator.
  void launch_first_calls(std::size_t use);
  // Behind set_peers(): the exchanges that are left to NCCL, so that it connects all members.
  void launch_first_exchanges();

  // Groups whose members write into each other's dynamic arena, and where the arenas of a group's
  // members are to be found from here, by member. A group without them is this rank alone.
  std::vector<std::int64_t> exchanging_groups() const;
  void* dynamic_arena() const { return arenas_[1]; }
  void set_member_arenas(std::int64_t group, std::vector<void*> arenas);
  // Where the members write: equal texts on all members, or what one writes hits something else.
  std::string exchange_layout() const;

  // Communicators whose members copy engines serve once each reaches the others' arenas, by their
  // index in uses(), and what must be equal on all members for that.
  std::vector<std::size_t> copied_uses() const;
  std::string copy_layout(std::size_t use) const;
  std::string copy_places(std::size_t use) const;  // not equal: this rank's own
  ArenaPair arenas() const { return {arenas_[0], arenas_[1]}; }
  // From now on copies do what they can of the communicator's calls. Members do so together, after
  // their first calls.
  void set_peers(std::size_t use, const std::vector<Peer>& members);
  // For ranks of one process (pace.h).
  void keep_pace(std::int64_t members);

  const Program& program() const { return program_; }
  DeviceView whole(std::int64_t tensor) const;
  DeviceView elements(std::int64_t tensor, std::int64_t first, std::int64_t count) const;
  void use_device() const;  // before any other call from a new thread

  // Persistent memory becomes zero, but for tables.
  void clear();
  // Launches every operation of the program; the caller synchronises.
  void launch_step(std::int64_t step, double learning_rate, const LaunchHooks& hooks);
  // Whether all that was launched is done. Throws CudaError or NcclError where something failed.
  bool is_done() const;
  void synchronize() const;
  // Ends collectives that may never end. Only the destructor may follow.
  void abort();

 private:
  friend class OperationLauncher;

  DeviceView resolve(const View& view) const;
  DeviceView find(const std::string& name) const;  // a persistent tensor
  CudaCommunicator* communicator_of(std::int64_t operation) const;
  CudaPeers* peers_of(std::int64_t operation) const;  // nullptr: not by copies
  std::size_t place_in_use(std::int64_t operation) const;
  // What a member has where this rank has `own`.
  void* at_member(std::int64_t group, std::size_t member, void* own) const;
  void zero_inputs(const Operation& op) const;
  void prepare_products(const GemmChoices& choices);
  GemmScales prepare_scales(std::int64_t index);  // of a product in fp8; else none
  void prepare_attention(AttentionKernels kernels);
  void prepare_forward(std::int64_t index, const Operation& op);
  void prepare_backward(std::int64_t index, const Operation& op);
  void prepare_tables();
  void load_kernels();
  void load_sums(const CommunicatorUse& use) const;
  void check_scratch() const;
  void release_peers() const;

  Program program_;
  std::vector<std::int64_t> launches_;  // operations by index, in the order of their launches
  int device_;
  char* arenas_[2] = {nullptr, nullptr};
  DeviceView product_workspace_;
  DeviceView fp8_operands_;  // where the program has products in fp8
  DeviceView barrier_;       // what members that write into each other's memory meet on
  DeviceView peer_words_;    // what members that copy into each other's memory meet on
  DeviceView scratch_;
  DeviceView rotary_table_;
  std::vector<cudaStream_t> streams_;
  std::vector<cudaEvent_t> events_;
  std::unique_ptr<CudaPace> pace_;  // nullptr: the host runs ahead
  std::unique_ptr<GemmLibrary> library_;
  std::map<std::int64_t, std::unique_ptr<Gemm>> products_;  // by operation
  std::unique_ptr<AttentionLibrary> attention_library_;
  std::unique_ptr<AttentionLibrary> own_attention_;  // where the other's workspace does not fit
  std::map<std::int64_t, std::unique_ptr<AttentionForward>> attention_forward_;  // by operation
  std::map<std::int64_t, std::unique_ptr<AttentionBackward>> attention_backward_;
  std::vector<CommunicatorUse> uses_;
  std::vector<std::int64_t> use_of_;                              // by operation; -1: none
  std::map<std::int64_t, std::vector<void*>> member_arenas_;      // by group
  std::vector<std::unique_ptr<CudaCommunicator>> communicators_;  // by use; nullptr: moves nothing
  std::vector<std::unique_ptr<CudaPeers>> peers_;                 // by use; nullptr: no copies
};

}  // namespace shardplan

#include "validator/cuda/rank.h"

#include <algorithm>
#include <chrono>
#include <set>
#include <stdexcept>
#include <thread>

#include "kernels/experts/router.h"
#include "kernels/pointwise/cuda_check.h"
#include "kernels/pointwise/embedding.h"
#include "kernels/pointwise/rms_norm.h"
#include "kernels/pointwise/rope.h"
#include "kernels/pointwise/squared_norm.h"
#include "validator/cuda/operations.h"

namespace shardplan {
namespace {

// Of kernel_scratch, at its start: what members meet on, those that exchange experts' rows and
// those that copy.
constexpr std::int64_t kBarrierWords = 16;
constexpr std::int64_t kMeetingWords = 64;
static_assert(kBarrierWords + kPeerWords <= kMeetingWords);

}  // namespace

Program widened(Program program) {
  for (Tensor& tensor : program.tensors) {
    tensor.dtype = tensor.dtype == DType::kBf16 ? DType::kFp32 : tensor.dtype;
    tensor.bytes *= 2;
    tensor.offset *= 2;
  }
  program.persistent_bytes *= 2;
  program.dynamic_bytes *= 2;
  return program;
}

DeviceView part_of(const DeviceView& view, std::int64_t index, std::int64_t count) {
  const std::int64_t elements = div_exact(view.elements(), count);
  return {.data = static_cast<char*>(view.data) + index * elements * bytes_of(view.dtype),
          .dtype = view.dtype,
          .rows = 1,
          .cols = elements,
          .stride = elements};
}

DeviceView part_of(const std::vector<DeviceView>& views, std::int64_t member, std::int64_t size) {
  return views.size() > 1 ? views[static_cast<std::size_t>(member)]
                          : part_of(views[0], member, size);
}

CudaRank::CudaRank(Program program, int device)
    : program_(std::move(program)), launches_(launch_order(program_)), device_(device) {
  use_device();
  uses_ = communicators_of(program_);
  communicators_.resize(uses_.size());
  peers_.resize(uses_.size());
  use_of_.assign(program_.operations.size(), -1);
  for (std::size_t use = 0; use < uses_.size(); ++use) {
    for (const std::int64_t i : uses_[use].operations) {
      use_of_[static_cast<std::size_t>(i)] = static_cast<std::int64_t>(use);
    }
  }
  try {
    const std::int64_t bytes[2] = {program_.persistent_bytes, program_.dynamic_bytes};
    for (std::size_t i = 0; i < 2; ++i) {
      CUDA_CHECK(
          cudaMalloc(reinterpret_cast<void**>(&arenas_[i]), static_cast<std::size_t>(bytes[i])));
    }
  } catch (...) {
    cudaFree(arenas_[0]);
    throw;
  }
}

CudaRank::~CudaRank() {
  cudaSetDevice(device_);
  cudaDeviceSynchronize();
  communicators_.clear();
  pace_.reset();
  for (cudaEvent_t event : events_) { cudaEventDestroy(event); }
  for (cudaStream_t stream : streams_) { cudaStreamDestroy(stream); }
  for (char* memory : arenas_) { cudaFree(memory); }
}

void CudaRank::prepare(AttentionKernels kernels, const GemmChoices& choices) {
  int least = 0;
  int greatest = 0;
  CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  for (std::int64_t i = 0; i < kNumStreams; ++i) {
    // Communication first: what others wait for.
    const int priority = static_cast<Stream>(i) == Stream::kCompute ? least : greatest;
    CUDA_CHECK(
        cudaStreamCreateWithPriority(&streams_.emplace_back(), cudaStreamNonBlocking, priority));
  }
  for (std::int64_t i = 0; i < program_.num_events; ++i) {
    CUDA_CHECK(cudaEventCreateWithFlags(&events_.emplace_back(), cudaEventDisableTiming));
  }
  CUDA_CHECK(cudaMemsetAsync(arenas_[1], 0, static_cast<std::size_t>(program_.dynamic_bytes),
                             streams_[0]));
  product_workspace_ = find("product_workspace");
  const DeviceView whole_scratch = find("kernel_scratch");
  barrier_ = whole_scratch;
  barrier_.cols = kBarrierWords;
  peer_words_ = whole_scratch;
  peer_words_.data = whole_scratch.as<float>() + kBarrierWords;
  peer_words_.cols = kPeerWords;
  fill_zero(peer_words_, streams_[0]);
  scratch_ = whole_scratch;
  scratch_.data = whole_scratch.as<float>() + kMeetingWords;
  scratch_.cols -= kMeetingWords;
  check_scratch();
  prepare_products(choices);
  prepare_attention(kernels);
  clear();
  load_kernels();
  synchronize();
}

void CudaRank::connect(std::size_t use, std::unique_ptr<CudaCommunicator> communicator) {
  communicators_.at(use) = std::move(communicator);
}

CudaCommunicator* CudaRank::communicator_of(std::int64_t operation) const {
  const std::int64_t use = use_of_[static_cast<std::size_t>(operation)];
  return use < 0 ? nullptr : communicators_[static_cast<std::size_t>(use)].get();
}

CudaPeers* CudaRank::peers_of(std::int64_t operation) const {
  const std::int64_t use = use_of_[static_cast<std::size_t>(operation)];
  if (use < 0) {
    return nullptr;
  }
  const Operation& op = program_.operations[static_cast<std::size_t>(operation)];
  const auto index = static_cast<std::size_t>(use);
  return peers_[index] && can_copy(op, uses_[index]) ? peers_[index].get() : nullptr;
}

std::vector<std::size_t> CudaRank::copied_uses() const {
  std::vector<std::size_t> copied;
  for (std::size_t use = 0; use < uses_.size(); ++use) {
    if (first_peer_word(uses_[use]) >= 0) {
      copied.push_back(use);
    }
  }
  return copied;
}

std::string CudaRank::copy_layout(std::size_t use) const {
  return shardplan::copy_layout(program_, uses_.at(use));
}

std::string CudaRank::copy_places(std::size_t use) const {
  const CommunicatorUse& u = uses_.at(use);
  const char* const words = peer_words_.as<char>() + 4 * first_peer_word(u);
  return shardplan::copy_places(program_, u, words - arenas_[0]);
}

void CudaRank::set_peers(std::size_t use, const std::vector<Peer>& members) {
  const CommunicatorUse& u = uses_.at(use);
  peers_.at(use) = std::make_unique<CudaPeers>(
      members, u.index, std::array{program_.persistent_bytes, program_.dynamic_bytes});
  load_sums(u);
}

std::size_t CudaRank::place_in_use(std::int64_t operation) const {
  const std::int64_t use = use_of_[static_cast<std::size_t>(operation)];
  const std::vector<std::int64_t>& calls = uses_[static_cast<std::size_t>(use)].operations;
  return static_cast<std::size_t>(std::ranges::lower_bound(calls, operation) - calls.begin());
}

void CudaRank::keep_pace(std::int64_t members) {
  pace_ = std::make_unique<CudaPace>(streams_, members);
}

std::vector<std::int64_t> CudaRank::exchanging_groups() const {
  std::set<std::int64_t> groups;
  for (const Operation& op : program_.operations) {
    const bool exchanges = op.kind == OpKind::kExpertDispatch || op.kind == OpKind::kExpertCombine;
    if (exchanges && program_.groups[static_cast<std::size_t>(op.group)].ranks.size() > 1) {
      groups.insert(op.group);
    }
  }
  return {groups.begin(), groups.end()};
}

void CudaRank::set_member_arenas(std::int64_t group, std::vector<void*> arenas) {
  member_arenas_[group] = std::move(arenas);
}

void* CudaRank::at_member(std::int64_t group, std::size_t member, void* own) const {
  const auto arenas = member_arenas_.find(group);
  if (arenas == member_arenas_.end()) {
    return own;
  }
  return static_cast<char*>(arenas->second.at(member)) + (static_cast<char*>(own) - arenas_[1]);
}

std::string CudaRank::exchange_layout() const {
  std::string text;
  for (const Operation& op : program_.operations) {
    const bool dispatches = op.kind == OpKind::kExpertDispatch;
    if (dispatches || op.kind == OpKind::kExpertCombine) {
      for (const View& view : dispatches ? op.out : op.in) {
        if (view.present()) {
          const Tensor& tensor = program_.tensors[static_cast<std::size_t>(view.tensor)];
          text += std::to_string(tensor.offset + view.offset * bytes_of(tensor.dtype));
          text += ' ';
        }
      }
    }
  }
  return text;
}

void CudaRank::use_device() const {
  CUDA_CHECK(cudaSetDevice(device_));
}

void CudaRank::synchronize() const {
  for (cudaStream_t stream : streams_) { CUDA_CHECK(cudaStreamSynchronize(stream)); }
}

bool CudaRank::is_done() const {
  for (cudaStream_t stream : streams_) {
    const cudaError_t state = cudaStreamQuery(stream);
    if (state == cudaErrorNotReady) {
      for (const auto& communicator : communicators_) {
        if (communicator) {
          communicator->check();
        }
      }
      return false;
    }
    CUDA_CHECK(state);
  }
  return true;
}

void CudaRank::abort() {
  for (const auto& communicator : communicators_) {
    if (communicator) {
      communicator->abort();
    }
  }
  release_peers();
}

// Members that still run may write their words once more: again and again.
void CudaRank::release_peers() const {
  constexpr int kTimes = 200;
  const auto is_idle = [](cudaStream_t stream) {
    return cudaStreamQuery(stream) != cudaErrorNotReady;
  };
  cudaSetDevice(device_);
  for (int i = 0; i < kTimes; ++i) {
    bool waits = false;
    for (const auto& peers : peers_) {
      if (peers) {
        peers->release();
        waits = true;
      }
    }
    if (!waits || std::ranges::all_of(streams_, is_idle)) {
      return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

DeviceView CudaRank::find(const std::string& name) const {
  for (std::size_t i = 0; i < program_.tensors.size(); ++i) {
    if (program_.tensors[i].name == name) {
      return whole(static_cast<std::int64_t>(i));
    }
  }
  throw std::logic_error("cuda: the program has no tensor '" + name + "'");
}

DeviceView CudaRank::resolve(const View& view) const {
  if (!view.present()) {
    return {};
  }
  const Tensor& tensor = program_.tensors.at(static_cast<std::size_t>(view.tensor));
  return {.data = arenas_[static_cast<std::size_t>(tensor.arena)] + tensor.offset +
                  view.offset * bytes_of(tensor.dtype),
          .dtype = tensor.dtype,
          .rows = view.rows,
          .cols = view.cols,
          .stride = view.stride};
}

DeviceView CudaRank::whole(std::int64_t tensor) const {
  const Tensor& row = program_.tensors.at(static_cast<std::size_t>(tensor));
  return resolve({.tensor = tensor, .rows = row.rows, .cols = row.cols, .stride = row.cols});
}

DeviceView CudaRank::elements(std::int64_t tensor, std::int64_t first, std::int64_t count) const {
  return resolve({.tensor = tensor, .offset = first, .rows = 1, .cols = count, .stride = count});
}

// But for the words that other members write: they may be ahead.
void CudaRank::clear() {
  char* const words = peer_words_.as<char>();
  char* const behind = words + peer_words_.elements() * bytes_of(peer_words_.dtype);
  const auto zero = [&](char* begin, const char* end) {
    CUDA_CHECK(cudaMemsetAsync(begin, 0, static_cast<std::size_t>(end - begin), streams_[0]));
  };
  zero(arenas_[0], words);
  zero(behind, arenas_[0] + program_.persistent_bytes);
  prepare_tables();
  synchronize();
}

void CudaRank::prepare_tables() {
  rotary_table_ = find("rotary_table");
  for (const Operation& op : program_.operations) {
    if (op.kind == OpKind::kRope) {
      rope_table(rotary_table_.as<float2>(), rotary_table_.rows, op.attributes.head_dim,
                 op.attributes.theta, streams_[0]);
      return;
    }
  }
}

void CudaRank::check_scratch() const {
  const std::int64_t room = scratch_.elements() * bytes_of(scratch_.dtype);
  for (std::size_t i = 0; i < program_.operations.size(); ++i) {
    const Operation& op = program_.operations[i];
    std::int64_t need = 0;
    if (op.kind == OpKind::kRmsNormBackward) {
      need = kRmsNormPartials * op.out[0].cols * 4;
    } else if (op.kind == OpKind::kEmbeddingBackward) {
      need = embedding_backward_scratch(op.in[1].rows) * 4;
    } else if (op.kind == OpKind::kSquaredNorm) {
      need = kSquaredNormPartials * 8;
    } else if (op.kind == OpKind::kRouterBackward) {
      need = kRouterPartials * 8;
    }
    if (need > room || (need > 0 && op.stream != Stream::kCompute)) {
      throw std::logic_error(place_of(program_, static_cast<std::int64_t>(i)) + " needs " +
                             std::to_string(need) + " bytes of scratch on the compute stream; " +
                             std::to_string(room) + " are there");
    }
  }
}

void CudaRank::launch_step(std::int64_t step, double learning_rate, const LaunchHooks& hooks) {
  const OperationLauncher launcher(*this, step, learning_rate);
  for (const std::int64_t index : launches_) {
    const Operation& op = program_.operations[static_cast<std::size_t>(index)];
    cudaStream_t stream = streams_[static_cast<std::size_t>(op.stream)];
    if (pace_) {
      pace_->before_launch();
    }
    for (const std::int64_t event : op.waits) {
      CUDA_CHECK(cudaStreamWaitEvent(stream, events_[static_cast<std::size_t>(event)]));
    }
    if (hooks.before) {
      hooks.before(index, stream);
    }
    launcher.launch(index);
    if (hooks.after) {
      hooks.after(index, stream);
    }
    if (op.records >= 0) {
      CUDA_CHECK(cudaEventRecord(events_[static_cast<std::size_t>(op.records)], stream));
    }
  }
}

}  // namespace shardplan

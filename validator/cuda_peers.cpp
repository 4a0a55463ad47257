#include "validator/cuda_peers.h"

#include <cuda.h>

#include <algorithm>
#include <sstream>
#include <stdexcept>

#include "kernels/convert.h"
#include "kernels/cuda_check.h"
#include "validator/cuda_operations.h"
#include "validator/cuda_rank.h"

namespace shardplan {
namespace {

using BatchMemOp = decltype(&cuStreamBatchMemOp);

constexpr int kReleasedByte = 0x3f;  // four of them: a number that no run of meetings reaches

// By way of the runtime: no program links the driver, which machines without a GPU lack.
BatchMemOp batch_of_driver() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  CUDA_CHECK(cudaGetDriverEntryPointByVersion("cuStreamBatchMemOp", &function, 12000,
                                              cudaEnableDefault, &found));
  if (found != cudaDriverEntryPointSuccess) {
    throw std::runtime_error("the driver has no cuStreamBatchMemOp, expected CUDA 12 or later");
  }
  return reinterpret_cast<BatchMemOp>(function);
}

struct Copies {
  std::vector<void*> to = {};
  std::vector<const void*> from = {};
  std::vector<std::size_t> bytes = {};

  void add(void* target, const void* source, std::int64_t count) {
    if (target != source && count > 0) {
      to.push_back(target);
      from.push_back(source);
      bytes.push_back(static_cast<std::size_t>(count));
    }
  }
};

// On copy engines, those within the device too.
void run(Copies copies, cudaStream_t stream) {
  if (copies.to.empty()) {
    return;
  }
  cudaMemcpyAttributes attributes{};
  attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
  attributes.flags = cudaMemcpyFlagPreferOverlapWithCompute;
  std::size_t first = 0;  // of the copies that they hold for
  CUDA_CHECK(cudaMemcpyBatchAsync(copies.to.data(), copies.from.data(), copies.bytes.data(),
                                  copies.to.size(), &attributes, &first, 1, stream));
}

std::int64_t bytes_in(const DeviceView& view) {
  return view.elements() * bytes_of(view.dtype);
}

std::int64_t bytes_in(const Program& program, const View& view) {
  return view.elements() * bytes_of(program.tensors[static_cast<std::size_t>(view.tensor)].dtype);
}

struct ArenaPlace {
  std::int64_t arena = 0;   // index of an ArenaPair
  std::int64_t offset = 0;  // bytes
};

ArenaPlace arena_place(const Program& program, const View& view) {
  const Tensor& tensor = program.tensors[static_cast<std::size_t>(view.tensor)];
  return {.arena = tensor.arena == Arena::kPersistent ? 0 : 1,
          .offset = tensor.offset + view.offset * bytes_of(tensor.dtype)};
}

const View& message_of(const Operation& op) {
  return op.kind == OpKind::kSend ? op.in[0] : op.out[0];
}

// sum = a + b; b may lie in another GPU's memory.
void add_views(const DeviceView& sum, const void* a, const void* b, cudaStream_t stream) {
  with_device_type(sum.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    add(sum.as<T>(), static_cast<const T*>(a), static_cast<const T*>(b), sum.elements(), stream);
  });
}

}  // namespace

bool can_copy(const Operation& op, const CommunicatorUse& use) {
  if (use.key.stream == Stream::kData) {  // weights; gradients are summed by NCCL
    return op.kind == OpKind::kAllGather;
  }
  switch (op.kind) {
    case OpKind::kAllGather:  // another's part lies where this one's copy of it will
      return op.out.size() == 1 || op.in[0] == op.out[static_cast<std::size_t>(use.index)];
    case OpKind::kReduceScatter:
    case OpKind::kExchange:
    case OpKind::kRingShift:
    case OpKind::kSend:
    case OpKind::kReceive: return true;
    case OpKind::kAllReduce: return op.in[0].elements() % (8 * use.size()) == 0;
    default: return false;
  }
}

std::string copy_layout(const Program& program, const CommunicatorUse& use) {
  std::uint64_t hash = 14695981039346656037U;  // as FNV-1a, by whole numbers
  const auto mix = [&](std::int64_t value) {
    hash = (hash ^ static_cast<std::uint64_t>(value)) * 1099511628211U;
  };
  const auto mix_place = [&](const View& view) {
    const ArenaPlace place = arena_place(program, view);
    mix(place.arena);
    mix(place.offset);
  };
  for (const std::int64_t i : use.operations) {
    const Operation& op = program.operations[static_cast<std::size_t>(i)];
    if (use.is_message()) {
      mix(bytes_in(program, message_of(op)));
      continue;
    }
    mix(static_cast<std::int64_t>(op.kind));
    const bool copies = can_copy(op, use);
    mix(copies ? 1 : 0);
    if (!copies) {
      continue;
    }
    for (const View& view : op.out) {  // where others write
      mix_place(view);
      mix(bytes_in(program, view));
    }
    if (op.kind == OpKind::kReduceScatter || op.kind == OpKind::kAllReduce) {
      for (const View& view : op.in) { mix_place(view); }  // what others read
    }
  }
  return std::to_string(use.operations.size()) + " " + std::to_string(hash);
}

std::string copy_places(const Program& program, const CommunicatorUse& use,
                        std::int64_t words_offset) {
  std::string places = std::to_string(words_offset);
  if (use.is_message() && use.index == 1) {
    for (const std::int64_t i : use.operations) {
      const Operation& op = program.operations[static_cast<std::size_t>(i)];
      const ArenaPlace place = arena_place(program, message_of(op));
      places += ' ';
      places += std::to_string(place.arena);
      places += ' ';
      places += std::to_string(place.offset);
    }
  }
  return places;
}

CudaPeers::CudaPeers(const std::vector<Peer>& members, std::int64_t index,
                     std::array<std::int64_t, 2> own_bytes)
    : index_(index), own_bytes_(own_bytes) {
  for (const Peer& member : members) {
    members_.push_back(member.arenas);
    stand_ins_.push_back(member.stand_in.value_or(static_cast<std::int64_t>(stand_ins_.size())));
    std::istringstream places(member.places);
    std::int64_t words = 0;
    places >> words;
    words_.push_back(reinterpret_cast<std::uint32_t*>(member.arenas[0] + words));
    for (ArenaPlace at; places >> at.arena >> at.offset;) {
      messages_.push_back(member.arenas.at(static_cast<std::size_t>(at.arena)) + at.offset);
    }
  }
  met_ = others();
  std::erase_if(met_, [&](std::int64_t i) { return is_absent(i); });
}

std::vector<std::int64_t> CudaPeers::others() const {
  std::vector<std::int64_t> members;
  for (std::int64_t i = 1; i < size(); ++i) { members.push_back((index_ + i) % size()); }
  return members;
}

void* CudaPeers::at(std::int64_t member, void* own) const {
  const ArenaPair& mine = members_[static_cast<std::size_t>(index_)];
  for (std::size_t arena = 0; arena < mine.size(); ++arena) {
    const std::ptrdiff_t offset = static_cast<char*>(own) - mine[arena];
    if (offset >= 0 && offset < own_bytes_[arena]) {
      return members_[static_cast<std::size_t>(member)][arena] + offset;
    }
  }
  throw std::logic_error("peers: an address outside the arenas");
}

void CudaPeers::meet(cudaStream_t stream) {
  static const BatchMemOp launch = batch_of_driver();
  ++meetings_;
  std::vector<CUstreamBatchMemOpParams> operations;
  for (const std::int64_t member : met_) {
    CUstreamBatchMemOpParams write{};
    write.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    write.writeValue.address =
        reinterpret_cast<CUdeviceptr>(words_[static_cast<std::size_t>(member)] + index_);
    write.writeValue.value = meetings_;
    write.writeValue.flags = CU_STREAM_WRITE_VALUE_DEFAULT;
    operations.push_back(write);
  }
  for (const std::int64_t member : met_) {
    CUstreamBatchMemOpParams wait{};
    wait.waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
    wait.waitValue.address =
        reinterpret_cast<CUdeviceptr>(words_[static_cast<std::size_t>(index_)] + member);
    wait.waitValue.value = meetings_;
    wait.waitValue.flags = CU_STREAM_WAIT_VALUE_GEQ;
    operations.push_back(wait);
  }
  const CUresult result =
      launch(stream, static_cast<unsigned>(operations.size()), operations.data(), 0);
  if (result != CUDA_SUCCESS) {
    throw std::runtime_error("cuStreamBatchMemOp: error " + std::to_string(result));
  }
}

void CudaPeers::all_gather(const DeviceView& in, const std::vector<DeviceView>& out,
                           cudaStream_t stream) {
  Copies copies;
  for (const std::int64_t member : others()) {
    const DeviceView part = part_of(out, part_for(member), size());
    copies.add(at(member, part.data), in.data, std::min(bytes_in(in), bytes_in(part)));
  }
  copies.add(part_of(out, index_, size()).data, in.data, bytes_in(in));
  meet(stream);
  run(std::move(copies), stream);
  meet(stream);
}

void CudaPeers::reduce_scatter(const std::vector<DeviceView>& in, const DeviceView& out,
                               cudaStream_t stream) {
  const DeviceView own = part_of(in, index_, size());
  std::vector<std::int64_t> members = others();
  meet(stream);
  const void* sum = own.data;
  if (out.data != own.data) {  // room for what the next member has
    const std::int64_t before = members.back();
    Copies copies;
    copies.add(at(before, out.data), part_of(in, before, size()).data, bytes_in(out));
    run(std::move(copies), stream);
    meet(stream);
    add_views(out, out.data, own.data, stream);
    members.erase(members.begin());
    if (members.empty()) {
      return;
    }
    sum = out.data;
  }
  for (const std::int64_t member : members) {
    add_views(out, sum, at(member, own.data), stream);
    sum = out.data;
  }
  meet(stream);
}

void CudaPeers::exchange(const std::vector<DeviceView>& in, const std::vector<DeviceView>& out,
                         cudaStream_t stream) {
  Copies copies;
  for (const std::int64_t member : others()) {
    const DeviceView theirs = part_of(in, member, size());
    copies.add(at(member, part_of(out, part_for(member), size()).data), theirs.data,
               bytes_in(theirs));
  }
  meet(stream);
  run(std::move(copies), stream);
  meet(stream);
}

void CudaPeers::all_reduce(const DeviceView& in, const DeviceView& out, cudaStream_t stream) {
  const DeviceView own = part_of(in, index_, size());
  const DeviceView sum = part_of(out, index_, size());
  meet(stream);
  const void* summed = own.data;
  for (const std::int64_t member : others()) {
    add_views(sum, summed, at(member, own.data), stream);
    summed = sum.data;
  }
  meet(stream);
  Copies copies;
  for (const std::int64_t member : others()) {
    copies.add(at(member, part_of(out, part_for(member), size()).data), sum.data, bytes_in(sum));
  }
  run(std::move(copies), stream);
  meet(stream);
}

void CudaPeers::ring_shift(const DeviceView& in, const DeviceView& out, cudaStream_t stream) {
  Copies copies;
  copies.add(at((index_ + 1) % size(), out.data), in.data, bytes_in(in));
  meet(stream);
  run(std::move(copies), stream);
  meet(stream);
}

void CudaPeers::send(const DeviceView& in, std::size_t message, cudaStream_t stream) {
  Copies copies;
  copies.add(messages_.at(message), in.data, bytes_in(in));
  meet(stream);
  run(std::move(copies), stream);
  meet(stream);
}

void CudaPeers::receive(cudaStream_t stream) {
  meet(stream);
  meet(stream);
}

void CudaPeers::load_sum(const DeviceView& view, cudaStream_t stream) {
  add_views(view, view.data, view.data, stream);
}

void CudaPeers::release() {
  cudaStream_t stream = nullptr;
  if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess) {
    cudaMemsetAsync(words_[static_cast<std::size_t>(index_)], kReleasedByte,
                    words_.size() * sizeof(std::uint32_t), stream);
    cudaStreamSynchronize(stream);
    cudaStreamDestroy(stream);
  }
}

}  // namespace shardplan

#include "validator/cuda/peers.h"

#include <cuda.h>

#include <sstream>
#include <stdexcept>
#include <utility>

#include "kernels/pointwise/convert.h"
#include "kernels/pointwise/cuda_check.h"
#include "validator/cuda/operations.h"
#include "validator/cuda/rank.h"

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

// On copy engines, those within the device too.
void run(const std::vector<PeerCopy>& copies, cudaStream_t stream) {
  std::vector<void*> to;
  std::vector<const void*> from;
  std::vector<std::size_t> bytes;
  for (const PeerCopy& copy : copies) {
    if (copy.to != copy.from && copy.bytes > 0) {
      to.push_back(copy.to);
      from.push_back(copy.from);
      bytes.push_back(static_cast<std::size_t>(copy.bytes));
    }
  }
  if (to.empty()) {
    return;
  }
  cudaMemcpyAttributes attributes{};
  attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
  attributes.flags = cudaMemcpyFlagPreferOverlapWithCompute;
  std::size_t first = 0;  // of the copies that they hold for
  CUDA_CHECK(cudaMemcpyBatchAsync(to.data(), from.data(), bytes.data(), to.size(), &attributes,
                                  &first, 1, stream));
}

std::int64_t bytes_in(const DeviceView& view) {
  return view.elements() * bytes_of(view.dtype);
}

Piece piece(const DeviceView& view) {
  return {.data = view.data, .bytes = bytes_in(view)};
}

// Those of all members.
std::vector<Piece> parts_of(const std::vector<DeviceView>& views, std::int64_t size) {
  std::vector<Piece> parts;
  for (std::int64_t member = 0; member < size; ++member) {
    parts.push_back(piece(part_of(views, member, size)));
  }
  return parts;
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

PeerCopies copies_of(const std::vector<Peer>& members, std::int64_t index,
                     std::array<std::int64_t, 2> own_bytes) {
  std::vector<ArenaPair> arenas;
  std::vector<std::int64_t> stand_ins;
  for (const Peer& member : members) {
    arenas.push_back(member.arenas);
    stand_ins.push_back(member.stand_in.value_or(static_cast<std::int64_t>(stand_ins.size())));
  }
  return {std::move(arenas), std::move(stand_ins), index, own_bytes};
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
    : copies_(copies_of(members, index, own_bytes)), met_(copies_.others()) {
  for (const Peer& member : members) {
    std::istringstream places(member.places);
    std::int64_t words = 0;
    places >> words;
    words_.push_back(reinterpret_cast<std::uint32_t*>(member.arenas[0] + words));
    for (ArenaPlace at; places >> at.arena >> at.offset;) {
      messages_.push_back(member.arenas.at(static_cast<std::size_t>(at.arena)) + at.offset);
    }
  }
  std::erase_if(met_, [&](std::int64_t i) { return copies_.is_absent(i); });
}

void CudaPeers::meet(cudaStream_t stream) {
  static const BatchMemOp launch = batch_of_driver();
  const std::int64_t index = copies_.index();
  ++meetings_;
  std::vector<CUstreamBatchMemOpParams> operations;
  for (const std::int64_t member : met_) {
    CUstreamBatchMemOpParams write{};
    write.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    write.writeValue.address =
        reinterpret_cast<CUdeviceptr>(words_[static_cast<std::size_t>(member)] + index);
    write.writeValue.value = meetings_;
    write.writeValue.flags = CU_STREAM_WRITE_VALUE_DEFAULT;
    operations.push_back(write);
  }
  for (const std::int64_t member : met_) {
    CUstreamBatchMemOpParams wait{};
    wait.waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
    wait.waitValue.address =
        reinterpret_cast<CUdeviceptr>(words_[static_cast<std::size_t>(index)] + member);
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

void CudaPeers::write(const std::vector<PeerCopy>& copies, cudaStream_t stream) {
  meet(stream);
  run(copies, stream);
  meet(stream);
}

void CudaPeers::all_gather(const DeviceView& in, const std::vector<DeviceView>& out,
                           cudaStream_t stream) {
  write(copies_.gather(piece(in), parts_of(out, copies_.size())), stream);
}

void CudaPeers::reduce_scatter(const std::vector<DeviceView>& in, const DeviceView& out,
                               cudaStream_t stream) {
  const DeviceView own = part_of(in, copies_.index(), copies_.size());
  std::vector<std::int64_t> members = copies_.others();
  const void* sum = own.data;
  if (out.data == own.data) {
    meet(stream);
  } else {  // room for what the next member has
    write({copies_.first_addend(parts_of(in, copies_.size()), piece(out))}, stream);
    add_views(out, out.data, own.data, stream);
    members.erase(members.begin());
    if (members.empty()) {  // nobody reads another's memory
      return;
    }
    sum = out.data;
  }
  for (const std::int64_t member : members) {
    add_views(out, sum, copies_.at(member, own.data), stream);
    sum = out.data;
  }
  meet(stream);
}

void CudaPeers::exchange(const std::vector<DeviceView>& in, const std::vector<DeviceView>& out,
                         cudaStream_t stream) {
  write(copies_.exchange(parts_of(in, copies_.size()), parts_of(out, copies_.size())), stream);
}

void CudaPeers::all_reduce(const DeviceView& in, const DeviceView& out, cudaStream_t stream) {
  const DeviceView own = part_of(in, copies_.index(), copies_.size());
  const DeviceView sum = part_of(out, copies_.index(), copies_.size());
  meet(stream);
  const void* summed = own.data;
  for (const std::int64_t member : copies_.others()) {
    add_views(sum, summed, copies_.at(member, own.data), stream);
    summed = sum.data;
  }
  write(copies_.gather(piece(sum), parts_of({out}, copies_.size())), stream);
}

void CudaPeers::ring_shift(const DeviceView& in, const DeviceView& out, cudaStream_t stream) {
  write({copies_.shift(piece(in), piece(out))}, stream);
}

void CudaPeers::send(const DeviceView& in, std::size_t message, cudaStream_t stream) {
  write({{.to = messages_.at(message), .from = in.data, .bytes = bytes_in(in)}}, stream);
}

void CudaPeers::receive(cudaStream_t stream) {
  write({}, stream);
}

void CudaPeers::load_sum(const DeviceView& view, cudaStream_t stream) {
  add_views(view, view.data, view.data, stream);
}

void CudaPeers::release() {
  cudaStream_t stream = nullptr;
  if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess) {
    cudaMemsetAsync(words_[static_cast<std::size_t>(copies_.index())], kReleasedByte,
                    words_.size() * sizeof(std::uint32_t), stream);
    cudaStreamSynchronize(stream);
    cudaStreamDestroy(stream);
  }
}

}  // namespace shardplan

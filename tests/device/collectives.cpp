// Collectives of the device's tensors, as NCCL has them: a stream of their own sends raw memory, and the host waits for nothing.
// What is sent goes through host memory and another backend, which other ranks have, too.

#include "collectives.hpp"

#include <ATen/core/ivalue.h>
#include <ATen/ops/empty.h>
#include <ATen/record_function.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#include "lagging.hpp"

namespace lagging {

namespace {

using Tensors = std::vector<at::Tensor>;

class Sent final : public c10d::Work {
 public:
  Sent(int rank, c10::intrusive_ptr<c10::ivalue::Future> future) : Work(rank), future_(std::move(future)) {}

  bool isCompleted() override { return future_->completed(); }
  bool isSuccess() const override { return true; }
  bool wait(std::chrono::milliseconds) override {
    future_->wait();  // the current stream waits, and not the host
    return true;
  }
  void synchronize() override { wait(kNoTimeout); }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }

 private:
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

// Host memory beside a tensor's. The tensor's own is known by address alone.
struct Beside {
  explicit Beside(const at::Tensor& tensor)
      : there(tensor.data_ptr()), nbytes(tensor.nbytes()), here(at::empty(tensor.sizes(), tensor.options().device(at::kCPU))) {
    TORCH_CHECK(tensor.is_contiguous(), "through_host sends contiguous tensors");
  }

  void* there;
  std::size_t nbytes;
  at::Tensor here;
};

class ThroughHost final : public c10d::Backend {
 public:
  ThroughHost(c10::intrusive_ptr<c10d::Backend> host, int rank, int size)
      : Backend(rank, size), host_(std::move(host)), stream_(c10::impl::VirtualGuardImpl(DEVICE_TYPE).getNewStream(device())) {}

  const std::string getBackendName() const override { return "through_host"; }

  c10::intrusive_ptr<c10d::Work> allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    return send(tensors, tensors,
                [options](c10d::Backend& host, Tensors& all, Tensors&) { return host.allreduce(all, options); });
  }

  c10::intrusive_ptr<c10d::Work> broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    return send(tensors, tensors,
                [options](c10d::Backend& host, Tensors& all, Tensors&) { return host.broadcast(all, options); });
  }

  c10::intrusive_ptr<c10d::Work> allgather(std::vector<Tensors>& gathered, Tensors& tensors,
                                           const c10d::AllgatherOptions& options) override {
    return send(gathered.at(0), tensors, [options](c10d::Backend& host, Tensors& all, Tensors& mine) {
      std::vector<Tensors> lists{all};
      return host.allgather(lists, mine, options);
    });
  }

  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& gathered, at::Tensor& tensor,
                                                 const c10d::AllgatherOptions& options) override {
    return send({gathered}, {tensor}, [options](c10d::Backend& host, Tensors& all, Tensors& mine) {
      return host._allgather_base(all[0], mine[0], options);
    });
  }

  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(at::Tensor& part, at::Tensor& tensor,
                                                      const c10d::ReduceScatterOptions& options) override {
    return send({part}, {tensor}, [options](c10d::Backend& host, Tensors& mine, Tensors& all) {
      return host._reduce_scatter_base(mine[0], all[0], options);
    });
  }

 private:
  using Call = std::function<c10::intrusive_ptr<c10d::Work>(c10d::Backend&, Tensors& to, Tensors& from)>;

  c10::intrusive_ptr<c10d::Work> send(Tensors to, Tensors from, Call call) {
    struct Sending {
      std::vector<Beside> to, from;
    };
    auto sending = std::make_shared<Sending>();
    for (const at::Tensor& tensor : to) sending->to.emplace_back(tensor);
    for (const at::Tensor& tensor : from) sending->from.emplace_back(tensor);
    c10::Event asked(DEVICE_TYPE);
    asked.record(current_stream());
    asked.block(stream_);
    launch(stream_, [sending, call = std::move(call), host = host_] {
      at::RecordFunctionGuard unseen(false);  // a stream calls no operators
      Tensors to, from;
      for (Beside& each : sending->from) {
        std::memcpy(each.here.data_ptr(), each.there, each.nbytes);
        from.push_back(each.here);
      }
      const Beside &first = sending->from[0], &result = sending->to[0];  // what is gathered may be a part of the result
      bool is_in_place = first.there == result.there && first.nbytes == result.nbytes;
      for (Beside& each : sending->to) to.push_back(each.here);
      if (is_in_place) to = from;
      call(*host, to, from)->wait();
      for (std::size_t i = 0; i < to.size(); ++i) std::memcpy(sending->to[i].there, to[i].data_ptr(), sending->to[i].nbytes);
    });
    c10::StreamGuard on(stream_);
    auto future = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()), std::vector{device()});
    future->markCompleted(c10::IValue(to));
    return c10::make_intrusive<Sent>(rank_, future);
  }

  c10::intrusive_ptr<c10d::Backend> host_;
  c10::Stream stream_;
};

}  // namespace

c10::intrusive_ptr<c10d::Backend> through(c10::intrusive_ptr<c10d::Backend> host, int rank, int size) {
  return c10::make_intrusive<ThroughHost>(std::move(host), rank, size);
}

}  // namespace lagging

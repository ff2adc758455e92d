// A device that no machine has, for tests of what a GPU would show. Its memory cannot be touched between operations. A
// copy between it and pinned memory of the host is as late as is allowed, the same way every time: it is made when its
// own stream computes, or when somebody waits for an event behind it. So a wait that is missing shows: old values are
// read, or a buffer is copied that has other ones by then.
//
// It has the dispatch key of MTIA, which every build of PyTorch knows, since parameters may change between that and the
// CPU as on CUDA. Operations are the CPU's, by PyTorch's fallback, with its bits.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/InferSize.h>
#include <ATen/TensorUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/detail/MTIAHooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/histc.h>
#include <ATen/ops/native_batch_norm.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <sys/mman.h>
#include <torch/library.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>

namespace {

using c10::Device, c10::DeviceIndex, c10::IntArrayRef, c10::OutOfMemoryError, c10::StreamId;

constexpr auto AWAY = c10::DeviceType::MTIA;
constexpr size_t PAGE = 4096;

std::recursive_mutex lock;
using Locked = std::lock_guard<std::recursive_mutex>;

// ---- what streams are to do

bool hangs = false; // nothing runs any more
std::condition_variable_any goes_on;

// What has run: to let go of a tensor may need the lock of Python's, which others hold who want ours. Never destroyed,
// since tensors need what is below
auto &over = *new std::vector<std::function<void()>>;
void bury() {
    std::vector<std::function<void()>> all;
    Locked locked(lock);
    all.swap(over);
}

struct Queue {
    long begun = 0, done = 0;
    std::deque<std::function<void()>> waiting;
    void run_to(long number) {
        while (!hangs && done < number) {
            auto next = std::move(waiting.front());
            waiting.pop_front();
            done++;
            next();
            over.push_back(std::move(next));
        }
    }
    void add(std::function<void()> what) {
        begun++;
        waiting.push_back(std::move(what));
    }
};

auto &queues = *new std::map<StreamId, Queue>;

// An operation that reads memory of the host in place (unified memory) may read it as late as the host learns that its
// stream has passed. Operations are computed at once here, so what they have read must be the same then
struct Read {
    const char *p;
    size_t nbytes, bits;
    long number;
};
auto &reads = *new std::map<StreamId, std::deque<Read>>;
long reads_begun = 0, overwritten = 0, seen = 0;
bool tells = false; // whether it is seen that a read has passed before anybody waits for it
int64_t copied = 0; // bytes, from the host

size_t bits_of(const char *p, size_t nbytes) {
    return std::hash<std::string_view>()({p, nbytes});
}

void end_read(const Read &read) {
    overwritten += bits_of(read.p, read.nbytes) != read.bits;
}

// The host learns that a stream has passed a read of this number
void learn(StreamId stream, long number) {
    auto &of = reads[stream];
    for (; !of.empty() && of.front().number <= number; of.pop_front())
        end_read(of.front());
}

// ---- memory

using Ranges = std::map<const char *, size_t>;
Ranges away, pinned; // by their first byte
constexpr size_t TOTAL = (size_t)8 << 30;
size_t live = 0, peak = 0, limit = TOTAL, pinned_limit = SIZE_MAX, pinned_bytes = 0, pinned_most = 0;
std::map<const char *, StreamId> born;            // the stream that memory was allocated on
std::set<std::pair<const char *, StreamId>> lent; // memory that record_stream() told another stream of
thread_local StreamId current = 0;

std::pair<const char *, size_t> range_of(const Ranges &ranges, const void *p) {
    auto it = ranges.upper_bound((const char *)p);
    if (it == ranges.begin() || (const char *)p >= std::prev(it)->first + std::prev(it)->second) return {nullptr, 0};
    return *std::prev(it);
}

size_t rounded(size_t nbytes) {
    return (nbytes + PAGE - 1) / PAGE * PAGE;
}

// Memory of the device that may be touched for a while
struct Open {
    std::vector<std::pair<const char *, size_t>> opened;
    explicit Open(std::initializer_list<const void *> pointers) {
        for (const void *p : pointers) {
            auto range = range_of(away, p);
            if (!range.first) continue;
            mprotect((void *)range.first, range.second, PROT_READ | PROT_WRITE);
            opened.push_back(range);
        }
    }
    ~Open() {
        for (auto &range : opened)
            mprotect((void *)range.first, range.second, PROT_NONE);
    }
};

struct Memory : c10::DeviceAllocator {
    c10::DataPtr allocate(size_t nbytes) override {
        Locked locked(lock);
        if (!nbytes) return {nullptr, nullptr, &release, Device(AWAY, 0)};
        TORCH_CHECK_WITH(OutOfMemoryError, live + rounded(nbytes) <= limit,
                         "stand-in: out of memory: ", rounded(nbytes), " bytes, and ", live, " of ", limit,
                         " are in use");
        void *p = mmap(nullptr, rounded(nbytes), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        TORCH_CHECK(p != MAP_FAILED);
        away[(char *)p] = rounded(nbytes);
        born[(char *)p] = current;
        live += rounded(nbytes);
        peak = std::max(peak, live);
        return {p, p, &release, Device(AWAY, 0)};
    }
    static void release(void *p) {
        Locked locked(lock);
        auto it = away.find((char *)p);
        if (it == away.end()) return;
        live -= it->second;
        // Its stream gets it back, once it has done all that it is to do by now
        Queue &queue = queues[born[(char *)p]];
        if (queue.waiting.empty())
            unmap(p);
        else
            queue.add([p] { unmap(p); });
    }
    static void unmap(void *p) {
        auto it = away.find((char *)p);
        munmap(p, it->second);
        lent.erase(lent.lower_bound({(char *)p, INT64_MIN}), lent.upper_bound({(char *)p, INT64_MAX}));
        away.erase(it);
    }
    c10::DeleterFnPtr raw_deleter() const override { return &release; }
    void copy_data(void *to, const void *from, size_t nbytes) const override {
        Open open{to, from};
        memcpy(to, from, nbytes);
    }
    bool initialized() override { return true; }
    void emptyCache(c10::MempoolId_t) override {}
    void recordStream(const c10::DataPtr &p, c10::Stream stream) override {
        Locked locked(lock);
        lent.insert({range_of(away, p.get()).first, stream.id()});
    }
    c10::CachingDeviceAllocator::DeviceStats getDeviceStats(DeviceIndex) override {
        Locked locked(lock);
        c10::CachingDeviceAllocator::DeviceStats stats;
        stats.allocated_bytes[0].current = (int64_t)live;
        stats.allocated_bytes[0].peak = (int64_t)peak;
        stats.reserved_bytes[0] = stats.allocated_bytes[0];
        return stats;
    }
    std::pair<size_t, size_t> getMemoryInfo(DeviceIndex) override { return {limit - std::min(live, limit), limit}; }
    void resetAccumulatedStats(DeviceIndex) override {}
    void resetPeakStats(DeviceIndex) override { peak = live; }
} memory;

struct PinnedMemory : c10::Allocator {
    c10::DataPtr allocate(size_t nbytes) override {
        Locked locked(lock);
        TORCH_CHECK(pinned_bytes + rounded(nbytes) <= pinned_limit, "stand-in: this memory cannot be pinned");
        void *p = aligned_alloc(PAGE, rounded(nbytes) + PAGE);
        TORCH_CHECK(p);
        pinned[(char *)p] = rounded(nbytes) + PAGE;
        pinned_bytes += rounded(nbytes);
        pinned_most = std::max(pinned_most, pinned_bytes);
        return {p, p, &release, Device(c10::DeviceType::CPU)};
    }
    static void release(void *p) {
        Locked locked(lock);
        pinned_bytes -= pinned[(char *)p] - PAGE;
        pinned.erase((char *)p);
        free(p);
    }
    c10::DeleterFnPtr raw_deleter() const override { return &release; }
    void copy_data(void *to, const void *from, size_t nbytes) const override { memcpy(to, from, nbytes); }
} pinned_memory;

// Memory that the process has mapped, as cudaHostRegister() pins it
void pin(int64_t address, int64_t nbytes) {
    Locked locked(lock);
    TORCH_CHECK(!range_of(pinned, (char *)address).first, "stand-in: this memory is pinned already");
    TORCH_CHECK(pinned_bytes + rounded(nbytes) <= pinned_limit, "stand-in: this memory cannot be pinned");
    pinned[(char *)address] = rounded(nbytes);
    pinned_bytes += rounded(nbytes);
    pinned_most = std::max(pinned_most, pinned_bytes);
}

void unpin(int64_t address) {
    Locked locked(lock);
    auto it = pinned.find((char *)address);
    TORCH_CHECK(it != pinned.end(), "stand-in: this memory is not pinned");
    pinned_bytes -= it->second;
    pinned.erase(it);
}

// ---- streams

double elapsed = 0; // milliseconds between any two events

struct Event {
    StreamId stream;
    long number, read;
};

StreamId last_stream = 0;

// What a thread that computes on the device waits for. One that only waits for events does not keep it from computing.
int64_t waits = 0, late = 0;
thread_local bool computes = false, inside = false;

struct Inside {
    bool was = inside;
    Inside() { computes = inside = true; }
    ~Inside() { inside = was; }
};

void count_wait() {
    waits += computes && !inside;
}

void run(StreamId stream) {
    queues[stream].run_to(queues[stream].begun);
}

c10::Stream stream_of(StreamId id) {
    return c10::Stream{c10::Stream::UNSAFE, Device(AWAY, 0), id};
}

struct Guard : c10::impl::DeviceGuardImplInterface {
    c10::DeviceType type() const override { return AWAY; }
    Device exchangeDevice(Device) const override { return {AWAY, 0}; }
    Device getDevice() const override { return {AWAY, 0}; }
    void setDevice(Device) const override {}
    void uncheckedSetDevice(Device) const noexcept override {}
    DeviceIndex deviceCount() const noexcept override { return 1; }
    c10::Stream getStream(Device) const override { return stream_of(current); }
    c10::Stream getDefaultStream(Device) const override { return stream_of(0); }
    c10::Stream getNewStream(Device, int) const override { return stream_of(++last_stream); }
    c10::Stream getStreamFromGlobalPool(Device, bool) const override { return stream_of(++last_stream); }
    c10::Stream exchangeStream(c10::Stream stream) const override {
        return stream_of(std::exchange(current, stream.id()));
    }
    void record(void **event, const c10::Stream &stream, DeviceIndex, c10::EventFlag) const override {
        Locked locked(lock);
        if (!*event) *event = new Event;
        *(Event *)*event = {stream.id(), queues[stream.id()].begun, reads_begun};
    }
    void block(void *event, const c10::Stream &stream) const override {
        Locked locked(lock);
        if (event) queues[stream.id()].add([e = *(Event *)event] { queues[e.stream].run_to(e.number); });
    }
    // With the lock of Python's, which whoever has ours may want: it is not seen to have passed as long as others run
    // something
    bool queryEvent(void *event) const override {
        std::unique_lock<std::recursive_mutex> locked(lock, std::try_to_lock);
        if (!locked) return false;
        auto e = (Event *)event;
        if (e && queues[e->stream].done >= e->number && tells) learn(e->stream, e->read);
        return !e || queues[e->stream].done >= e->number &&
                         (reads[e->stream].empty() || reads[e->stream].front().number > e->read);
    }
    void synchronizeEvent(void *event) const override {
        std::unique_lock<std::recursive_mutex> locked(lock);
        count_wait();
        goes_on.wait(locked, [] { return !hangs; });
        auto e = (Event *)event;
        if (!e) return;
        queues[e->stream].run_to(e->number);
        learn(e->stream, e->read);
    }
    double elapsedTime(void *, void *, DeviceIndex) const override { return elapsed; }
    void destroyEvent(void *event, DeviceIndex) const noexcept override { delete (Event *)event; }
    bool queryStream(const c10::Stream &stream) const override {
        Locked locked(lock);
        return queues[stream.id()].done == queues[stream.id()].begun;
    }
    void synchronizeStream(const c10::Stream &stream) const override {
        Locked locked(lock);
        count_wait();
        run(stream.id());
    }
    void synchronizeDevice(DeviceIndex) const override {
        Locked locked(lock);
        count_wait();
        for (auto &queue : queues)
            run(queue.first);
    }
    void recordDataPtrOnStream(const c10::DataPtr &p, const c10::Stream &stream) const override {
        memory.recordStream(p, stream);
    }
};
C10_REGISTER_GUARD_IMPL(MTIA, Guard);

// A generator of the device. What it draws is what one of the CPU draws
struct Generator : at::CPUGeneratorImpl {
    Generator() {
        device_ = Device(AWAY, 0);
        key_set_ = c10::DispatchKeySet(c10::DispatchKey::MTIA);
    }
};

struct Hooks : at::MTIAHooksInterface {
    explicit Hooks(at::MTIAHooksArgs = {}) {}
    void init() const override {}
    bool hasMTIA() const override { return true; }
    bool isBuilt() const override { return true; }
    bool isAvailable() const override { return true; }
    bool hasPrimaryContext(DeviceIndex) const override { return true; }
    DeviceIndex deviceCount() const override { return 1; }
    DeviceIndex getCurrentDevice() const override { return 0; }
    DeviceIndex exchangeDevice(DeviceIndex) const override { return 0; }
    DeviceIndex maybeExchangeDevice(DeviceIndex) const override { return 0; }
    void setCurrentDevice(DeviceIndex) const override {}
    bool isPinnedPtr(const void *p) const override {
        Locked locked(lock);
        return range_of(pinned, p).first;
    }
    c10::Allocator *getPinnedMemoryAllocator() const override { return &pinned_memory; }
    const at::Generator &getDefaultGenerator(DeviceIndex) const override {
        static at::Generator generator = at::make_generator<Generator>();
        return generator;
    }
    at::Generator getNewGenerator(DeviceIndex) const override { return at::make_generator<Generator>(); }
};

// ---- tensors

const void *storage_of(const at::Tensor &t) {
    return t.storage().data();
}
bool is_away(const at::Tensor &t) {
    return t.device().type() == AWAY;
}

at::Tensor empty(IntArrayRef size, std::optional<at::ScalarType> type, std::optional<at::Layout>, std::optional<Device>,
                 std::optional<bool>, std::optional<at::MemoryFormat> format) {
    return at::detail::empty_generic(size, &memory, c10::DispatchKeySet(c10::DispatchKey::MTIA),
                                     type.value_or(at::get_default_dtype_as_scalartype()), format);
}

at::Tensor empty_strided(IntArrayRef size, IntArrayRef stride, std::optional<at::ScalarType> type,
                         std::optional<at::Layout>, std::optional<Device>, std::optional<bool>) {
    return at::detail::empty_strided_generic(size, stride, &memory, c10::DispatchKeySet(c10::DispatchKey::MTIA),
                                             type.value_or(at::get_default_dtype_as_scalartype()));
}

// A tensor as the CPU sees it, without a hold of its storage
struct Bare {
    void *p;
    size_t nbytes;
    std::vector<int64_t> size, stride;
    int64_t offset;
    at::ScalarType type;
    bool away;
    at::Tensor kept; // what the stream may count on, as of PyTorch's allocators: memory that was allocated on it, or
                     // that it was told of
    explicit Bare(const at::Tensor &t)
        : p((void *)storage_of(t)), nbytes(t.storage().nbytes()), size(t.sizes().vec()), stride(t.strides().vec()),
          offset(t.storage_offset()), type(t.scalar_type()), away(is_away(t)) {
        const char *start = range_of(::away, p).first;
        if (start && (born[start] == current || lent.count({start, current}))) kept = t.detach();
    }
    at::Tensor view() const {
        TORCH_CHECK(!away || range_of(::away, p).first || range_of(pinned, p).first,
                    "memory of the device was given back while a copy was still to come");
        return at::from_blob(p, (int64_t)(nbytes / c10::elementSize(type)), at::TensorOptions().dtype(type))
            .as_strided(size, stride, offset);
    }
};

// Notes that the current stream reads memory of the host in place, or writes to it
void note(const Bare &t, bool writes) {
    auto p = (const char *)t.p + t.offset * c10::elementSize(t.type);
    size_t nbytes = c10::elementSize(t.type);
    for (size_t i = 0; i < t.size.size(); i++)
        nbytes += (t.size[i] - 1) * t.stride[i] * c10::elementSize(t.type);
    if (!t.away || range_of(away, t.p).first || !range_of(pinned, t.p).first) return;
    if (!writes) {
        seen++;
        reads[current].push_back({p, nbytes, bits_of(p, nbytes), ++reads_begun});
        return;
    }
    for (auto &[stream, of] : reads) // in the order of its stream
        std::erase_if(of, [&](const Read &r) { return r.p < p + nbytes && p < r.p + r.nbytes && (end_read(r), true); });
}

void copy_now(const Bare &from, const Bare &to) {
    at::NoGradGuard no_grad;
    copied += !from.away && to.away && range_of(pinned, from.p).first ? to.nbytes : 0;
    note(from, false);
    note(to, true);
    Open open{from.p, to.p};
    to.view().copy_(from.view());
}

at::Tensor copy_from(const at::Tensor &from, const at::Tensor &to, bool non_blocking) {
    if (!to.numel()) return to;
    bury();
    Locked locked(lock);
    bool within = is_away(from) && is_away(to);
    if (non_blocking && (within || range_of(pinned, storage_of(is_away(from) ? to : from)).first)) {
        late++;
        queues[current].add([a = Bare(from), b = Bare(to)] { copy_now(a, b); });
        return to;
    }
    if (!within) count_wait();
    run(current);
    copy_now(Bare(from), Bare(to));
    return to;
}

at::Tensor copy_from_and_resize(const at::Tensor &from, const at::Tensor &to) {
    if (from.sizes() != to.sizes()) const_cast<at::Tensor &>(to).resize_(from.sizes());
    return copy_from(from, to, false);
}

// Memory of the host that is pinned, as the device sees it
at::Tensor seen_by_the_device(const at::Tensor &here) {
    auto keep = new at::Tensor(here);
    c10::DataPtr p(
        here.data_ptr(), keep, [](void *kept) { delete (at::Tensor *)kept; }, Device(AWAY, 0));
    c10::Storage storage(c10::Storage::use_byte_size_t(), here.nbytes(), std::move(p), nullptr, false);
    auto out = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(c10::DispatchKey::MTIA),
                                                        here.dtype());
    out.unsafeGetTensorImpl()->set_sizes_contiguous(here.sizes());
    return out;
}

at::Tensor as_strided(const at::Tensor &t, IntArrayRef size, IntArrayRef stride, std::optional<int64_t> offset) {
    auto out = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(t.storage()), t.key_set(),
                                                        t.dtype());
    out.unsafeGetTensorImpl()->set_storage_offset(offset.value_or(t.storage_offset()));
    out.unsafeGetTensorImpl()->set_sizes_and_strides(size, stride);
    return out;
}

at::Tensor reshape_alias(const at::Tensor &t, IntArrayRef size, IntArrayRef stride) {
    return as_strided(t, size, stride, std::nullopt);
}

at::Tensor view(const at::Tensor &t, IntArrayRef asked) {
    auto size = at::infer_size_dv(asked, t.numel());
    auto stride = at::detail::computeStride(t.sizes(), t.strides(), size);
    TORCH_CHECK(stride, "view: not compatible");
    return as_strided(t, size, *stride, std::nullopt);
}

at::Tensor &set_storage(at::Tensor &t, c10::Storage storage, int64_t offset, IntArrayRef size, IntArrayRef stride) {
    t.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(storage));
    t.unsafeGetTensorImpl()->set_storage_offset(offset);
    t.unsafeGetTensorImpl()->set_sizes_and_strides(size, stride);
    return t;
}

at::Tensor &set_whole_storage(at::Tensor &t, c10::Storage storage) {
    int64_t numel = (int64_t)(storage.nbytes() / t.element_size()), one = 1;
    return set_storage(t, std::move(storage), 0, numel, one);
}

// A storage keeps its bytes, as far as it has room for them
void resize_storage(c10::Storage storage, size_t nbytes) {
    Locked locked(lock);
    run(current);
    c10::DataPtr fresh = memory.allocate(nbytes);
    if (nbytes && storage.nbytes()) memory.copy_data(fresh.get(), storage.data(), std::min(nbytes, storage.nbytes()));
    storage.set_data_ptr_noswap(std::move(fresh));
    storage.set_nbytes(nbytes);
}

const at::Tensor &resize(const at::Tensor &t, IntArrayRef size, std::optional<at::MemoryFormat>) {
    t.unsafeGetTensorImpl()->set_sizes_contiguous(size);
    size_t nbytes = (t.numel() + t.storage_offset()) * t.element_size();
    if (nbytes > t.storage().nbytes()) resize_storage(t.storage(), nbytes);
    return t;
}

at::Scalar local_scalar(const at::Tensor &t) {
    Locked locked(lock);
    count_wait();
    run(current);
    Open open{storage_of(t)};
    return Bare(t).view().item();
}

// As CUDA: raises for tensors of the host among those of the device, numbers and indices aside
void refuse_mixed(const c10::OperatorHandle &op, const torch::jit::Stack &stack) {
    static const std::set<std::string> takes_both = {
        "aten::index",         "aten::index_put",         "aten::index_put_", "aten::_index_put_impl_",
        "aten::_unsafe_index", "aten::_unsafe_index_put", "aten::_to_copy",   "aten::copy_"};
    bool here = false, there = false;
    auto look = [&](const at::Tensor &t) {
        if (t.defined()) (is_away(t) ? there : here) |= is_away(t) || t.dim() > 0;
    };
    for (const auto &value : torch::jit::last(stack, op.schema().arguments().size())) {
        if (value.isTensor()) look(value.toTensor());
        if (value.isTensorList())
            for (const at::Tensor &t : value.toTensorVector())
                look(t);
    }
    TORCH_CHECK(!here || !there || takes_both.count(op.schema().name()),
                "Expected all tensors to be on the same device, but found at least two devices, mtia:0 and cpu! (",
                op.schema().name(), ")");
}

void on_the_cpu(const c10::OperatorHandle &op, torch::jit::Stack *stack) {
    Inside of_the_device;
    {
        Locked locked(lock);
        run(current);
    }
    refuse_mixed(op, *stack);
    std::vector<std::pair<at::Generator, at::Generator>> drawing; // the device's, the CPU's in its state
    for (size_t i = stack->size() - op.schema().arguments().size(); i < stack->size(); i++) {
        if (!(*stack)[i].isGenerator() || (*stack)[i].toGenerator().device().type() != AWAY) continue;
        drawing.push_back({(*stack)[i].toGenerator(), at::detail::createCPUGenerator()});
        drawing.back().second.set_state(drawing.back().first.get_state());
        (*stack)[i] = drawing.back().second;
    }
    at::native::cpu_fallback(op, stack);
    for (auto &[there, here] : drawing)
        there.set_state(here.get_state());
}

// ---- operations that have no fallback of PyTorch's, or none with a GPU's types

struct On {
    Inside of_the_device;
    Locked locked{lock};
    at::NoGradGuard no_grad;
    On() { run(current); }
};

at::Tensor down(const at::Tensor &t) {
    at::Tensor from = t.is_non_overlapping_and_dense() ? t : t.contiguous();
    at::Tensor out = at::empty_strided(from.sizes(), from.strides(), from.options().device(at::kCPU));
    if (t.numel()) copy_now(Bare(from), Bare(out));
    return out;
}

at::Tensor up(const at::Tensor &t) {
    if (!t.defined()) return t;
    at::Tensor out = at::empty_strided(t.sizes(), t.strides(), t.options().device(Device(AWAY, 0)));
    if (t.numel()) copy_now(Bare(t), Bare(out));
    return out;
}

using Maybe = std::optional<at::Tensor>;
Maybe down(const Maybe &t) {
    return t && t->defined() ? Maybe(down(*t)) : std::nullopt;
}

at::Tensor convolution(const at::Tensor &x, const at::Tensor &w, const Maybe &bias, IntArrayRef stride,
                       IntArrayRef padding, IntArrayRef dilation, bool transposed, IntArrayRef output_padding,
                       int64_t groups) {
    On the_device;
    return up(
        at::convolution(down(x), down(w), down(bias), stride, padding, dilation, transposed, output_padding, groups));
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(const at::Tensor &y, const at::Tensor &x,
                                                                    const at::Tensor &w, IntArrayRef stride,
                                                                    IntArrayRef padding, IntArrayRef dilation,
                                                                    bool transposed, IntArrayRef output_padding,
                                                                    int64_t groups, std::array<bool, 3> mask) {
    On the_device;
    int64_t outputs = y.size(1);
    at::OptionalIntArrayRef bias =
        mask[2] ? at::OptionalIntArrayRef(IntArrayRef(&outputs, 1)) : at::OptionalIntArrayRef();
    auto out = at::convolution_backward(down(y), down(x), down(w), bias, stride, padding, dilation, transposed,
                                        output_padding, groups, mask);
    return {up(std::get<0>(out)), up(std::get<1>(out)), up(std::get<2>(out))};
}

// Writes to what its schema does not name
std::tuple<at::Tensor, at::Tensor, at::Tensor> batch_norm(const at::Tensor &x, const Maybe &w, const Maybe &b,
                                                          const Maybe &mean, const Maybe &var, bool training,
                                                          double momentum, double eps) {
    On the_device;
    Maybe m = down(mean), v = down(var);
    auto out = at::native_batch_norm(down(x), down(w), down(b), m, v, training, momentum, eps);
    if (training && m) copy_now(Bare(*m), Bare(*mean));
    if (training && v) copy_now(Bare(*v), Bare(*var));
    return {up(std::get<0>(out)), up(std::get<1>(out)), up(std::get<2>(out))};
}

// Of integers, too, as on a GPU
at::Tensor histogram(const at::Tensor &x, int64_t bins, const at::Scalar &least, const at::Scalar &most) {
    On the_device;
    at::Tensor here = down(x);
    return up(
        at::histc(here.is_floating_point() ? here : here.to(at::kFloat), bins, least, most).to(here.scalar_type()));
}

TORCH_LIBRARY_IMPL(_, MTIA, m) {
    m.fallback(torch::CppFunction::makeFromBoxedFunction<&on_the_cpu>());
}

TORCH_LIBRARY_IMPL(aten, MTIA, m) {
    m.impl("empty.memory_format", empty);
    m.impl("empty_strided", empty_strided);
    m.impl("_copy_from", copy_from);
    m.impl("_copy_from_and_resize", copy_from_and_resize);
    m.impl("as_strided", as_strided);
    m.impl("_reshape_alias", reshape_alias);
    m.impl("view", view);
    m.impl("set_.source_Storage_storage_offset", set_storage);
    m.impl("set_.source_Storage", set_whole_storage);
    m.impl("resize_", resize);
    m.impl("record_stream",
           [](at::Tensor &t, c10::Stream stream) { memory.recordStream(t.storage().data_ptr(), stream); });
    m.impl("_local_scalar_dense", local_scalar);
    m.impl("convolution_overrideable", convolution);
    m.impl("convolution_backward_overrideable", convolution_backward);
    m.impl("native_batch_norm", batch_norm);
    m.impl("histc", histogram);
    // where a device does not name these, PyTorch has formulas of its own, with other bits
    for (auto name : {"native_layer_norm", "native_group_norm", "silu_backward", "mish_backward"})
        m.impl(name, torch::CppFunction::makeFromBoxedFunction<&on_the_cpu>());
}

// PyTorch does not see that these have a kernel of the device, and differentiates their formulas
TORCH_LIBRARY_IMPL(aten, AutogradMTIA, m) {
    for (auto name : {"silu_backward", "mish_backward"})
        m.impl(name, torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY(standin, m) {
    c10::SetAllocator(AWAY, &memory);
    m.def("waits() -> int", [] { return waits; });
    m.def("late() -> int", [] { return late; });
    m.def("live() -> int", [] {
        bury();
        return (int64_t)live;
    });
    m.def("resize_storage(Tensor t, int nbytes) -> ()",
          [](const at::Tensor &t, int64_t nbytes) { resize_storage(t.storage(), (size_t)nbytes); });
    m.def("pin(int address, int nbytes) -> ()", pin);
    m.def("unpin(int address) -> ()", unpin);
    m.def("see(Tensor here) -> Tensor", seen_by_the_device);
    m.def("overwritten() -> int", [] {
        Locked locked(lock);
        for (auto &queue : queues) {
            run(queue.first);
            learn(queue.first, reads_begun);
        }
        return (int64_t)std::exchange(overwritten, 0);
    });
    m.def("tell(bool on) -> ()", [](bool on) { tells = on; });
    m.def("seen() -> int", [] { return (int64_t)seen; });
    m.def("copied() -> int", [] { return copied; });
    m.def("pinned() -> int", [] { return (int64_t)pinned_bytes; });
    m.def("pinned_most() -> int", [] { return (int64_t)std::exchange(pinned_most, pinned_bytes); });
    m.def("elapse(float ms) -> ()", [](double ms) { elapsed = ms; });
    m.def("hang(bool on) -> ()", [](bool on) {
        Locked locked(lock);
        hangs = on;
        goes_on.notify_all();
    });
    m.def("limit(int nbytes) -> ()", [](int64_t nbytes) { limit = nbytes < 0 ? TOTAL : (size_t)nbytes; });
    m.def("limit_pinned(int nbytes) -> ()",
          [](int64_t nbytes) { pinned_limit = nbytes < 0 ? SIZE_MAX : (size_t)nbytes; });
}

} // namespace

namespace at {
using MTIAHooks = ::Hooks;
REGISTER_MTIA_HOOKS(MTIAHooks)
} // namespace at

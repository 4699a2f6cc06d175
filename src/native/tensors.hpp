// Tensors of torch as arguments and results, through the C functions of DLPack 1 that torch provides (from
// version 2.10 on). They take a tenth of the time of the same questions asked in Python, and the kernel is
// not linked against torch.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

#include "arrays.hpp"
#include "pool.hpp"
#include "types.hpp"

namespace everypair {

// The layout of these structs is fixed by DLPack.
namespace dlpack {
struct Version {
    std::uint32_t major, minor;
};
struct Tensor {
    void* data;
    std::int32_t device_type, device;
    std::int32_t n_dims;
    std::uint8_t kind, bits;
    std::uint16_t lanes;
    std::int64_t *shape, *strides;
    std::uint64_t offset;  // of the first element, in bytes
};
struct Managed {
    Version version;
    void* context;
    void (*free)(Managed*);
    std::uint64_t flags;
    Tensor tensor;
};
struct Exchange {
    Version version;
    Exchange* previous;
    void *allocate, *managed_from_object;  // not used here
    int (*object_from)(Managed* tensor, void** object);
    int (*tensor_from)(void* object, Tensor* tensor);
};
constexpr std::int32_t cpu = 1;
enum : std::uint8_t { signed_kind = 0, unsigned_kind = 1, float_kind = 2, bool_kind = 6 };
}  // namespace dlpack

inline const dlpack::Exchange* exchange = nullptr;  // null: tensors cannot be read

// Takes the functions of a capsule, `torch.Tensor.__dlpack_c_exchange_api__`.
inline void set_exchange(nb::handle capsule) {
    const auto* functions =
        static_cast<dlpack::Exchange*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
    if (!functions) throw nb::python_error();
    exchange = functions->version.major == 1 && functions->tensor_from ? functions : nullptr;
}

// The memory of a tensor of shape (n,) or (n, 1); no data if the kernel cannot read it as it is.
class Column {
  public:
    Array array;
    int n_dims = 0;

    explicit Column(nb::handle object) {
        dlpack::Tensor tensor{};
        if (exchange && exchange->tensor_from(object.ptr(), &tensor) != 0) PyErr_Clear();
        const bool is_column = tensor.n_dims == 1 || (tensor.n_dims == 2 && tensor.shape[1] == 1);
        if (!tensor.data || tensor.device_type != dlpack::cpu || !is_column) return;
        const std::int64_t n = tensor.shape[0];
        if (n < 1 || n >= std::int64_t{1} << 32 || (n > 1 && tensor.strides && tensor.strides[0] != 1))
            return;
        for (const auto& [kind, bits, type] : types)
            if (tensor.kind == kind && tensor.bits == bits) {
                n_dims = tensor.n_dims;
                array = {static_cast<std::byte*>(tensor.data) + tensor.offset, type, n};
            }
    }

  private:
    struct Type {
        std::uint8_t kind, bits;
        Dtype type;
    };
    static constexpr Type types[] = {
        {dlpack::float_kind, 32, Dtype::f32}, {dlpack::float_kind, 64, Dtype::f64},
        {dlpack::bool_kind, 8, Dtype::u8},    {dlpack::unsigned_kind, 8, Dtype::u8},
        {dlpack::signed_kind, 8, Dtype::i8},  {dlpack::signed_kind, 32, Dtype::i32},
        {dlpack::signed_kind, 64, Dtype::i64}};
};

// A new tensor of shape (), (n,) or (n, 1) with float32 or float64 elements.
class NewTensor {
  public:
    NewTensor(Dtype type, int n_dims, std::int64_t n) {
        const std::uint8_t bytes = type == Dtype::f32 ? 4 : 8, bits = 8 * bytes;
        memory_.reset(new (allocate(sizeof(Memory) + n * bytes)) Memory{{}, {n, 1}, {1, 1}});
        const dlpack::Tensor tensor{data(),         dlpack::cpu,      0, n_dims, dlpack::float_kind, bits, 1,
                                    memory_->shape, memory_->strides, 0};
        memory_->managed = {{1, 0}, nullptr, [](dlpack::Managed* self) { std::free(self); }, 0, tensor};
    }

    void* data() const { return memory_.get() + 1; }

    // Gives the memory to an object of Python.
    nb::object release() {
        void* object;
        if (exchange->object_from(&memory_->managed, &object) != 0) throw nb::python_error();
        memory_.release();
        return nb::steal(static_cast<PyObject*>(object));
    }

  private:
    struct alignas(64) Memory {
        dlpack::Managed managed;
        std::int64_t shape[2], strides[2];
    };
    std::unique_ptr<Memory, Free> memory_;
};

}  // namespace everypair

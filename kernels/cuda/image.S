/* The fat binary of the CUDA kernels, as data (Makefile). Without IMAGE there is none. */
    .section .rodata
    .globl kernel_cuda_image, kernel_cuda_image_bytes
    .hidden kernel_cuda_image, kernel_cuda_image_bytes
    .balign 64
kernel_cuda_image:
#ifdef IMAGE
    .incbin IMAGE
#endif
end_of_image:
    .balign 8
kernel_cuda_image_bytes:
    .quad end_of_image - kernel_cuda_image
    .section .note.GNU-stack, "", %progbits

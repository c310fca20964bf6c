"""A fleet on one machine: the processes of every region and the emulated WAN, with operations to kill and restart."""

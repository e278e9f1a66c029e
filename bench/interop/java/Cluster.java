import java.io.File;
import java.util.EnumSet;
import java.util.HashMap;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.CreateFlag;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileChecksum;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Options;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.hadoop.hdfs.DistributedFileSystem;
import org.apache.hadoop.hdfs.HdfsConfiguration;
import org.apache.hadoop.hdfs.MiniDFSCluster;
import org.apache.hadoop.hdfs.protocol.ExtendedBlock;
import org.apache.hadoop.hdfs.protocol.LocatedBlock;
import org.apache.hadoop.util.DataChecksum;

/** A name node and data nodes in this JVM. */
final class Cluster {
  private Cluster() {}

  private static MiniDFSCluster cluster;

  /** A client for each way to combine checksums. */
  private static final Map<String, FileSystem> byMode = new HashMap<>();

  private static Configuration conf(File dir) {
    Configuration c = new HdfsConfiguration();
    c.set(MiniDFSCluster.HDFS_MINIDFS_BASEDIR, dir.getPath());
    c.setLong("dfs.namenode.fs-limits.min-block-size", 0);
    c.setInt("dfs.heartbeat.interval", 1);
    // close asks again soon whether the datanode has reported its block
    c.setInt("dfs.client.block.write.locateFollowingBlock.initial.delay.ms", 5);
    return c;
  }

  static void register(Map<String, Judge.Command> commands) {
    // cluster.start DIR NODES
    commands.put("cluster.start", (a, r) -> {
      if (cluster != null) {
        throw new IllegalStateException("the cluster runs already");
      }
      File dir = new File(Judge.text(a[1]));
      cluster = new MiniDFSCluster.Builder(conf(dir), dir)
          .numDataNodes(Integer.parseInt(a[2])).build();
      cluster.waitActive();
    });
    // cluster.write PATH TYPE BPC BLOCKSIZE DATA: by the Java client
    commands.put("cluster.write", (a, r) -> {
      DistributedFileSystem fs = cluster.getFileSystem();
      Options.ChecksumOpt opt = new Options.ChecksumOpt(DataChecksum.Type.valueOf(a[2]),
          Integer.parseInt(a[3]));
      try (FSDataOutputStream out = fs.create(new Path(Judge.text(a[1])), FsPermission.getDefault(),
          EnumSet.of(CreateFlag.CREATE, CreateFlag.OVERWRITE), 4096, (short) 1,
          Long.parseLong(a[4]), null, opt)) {
        out.write(Judge.bytes(a[5]));
      }
    });
    // cluster.checksum PATH MODE LENGTH|-: algorithm name, bytes and text, or "none"
    commands.put("cluster.checksum", (a, r) -> {
      FileSystem fs = byMode.get(a[2]);
      if (fs == null) {
        Configuration c = new Configuration(cluster.getConfiguration(0));
        c.set("dfs.checksum.combine.mode", a[2]);
        fs = FileSystem.newInstance(cluster.getURI(), c);
        byMode.put(a[2], fs);
      }
      Path p = new Path(Judge.text(a[1]));
      FileChecksum sum = a[3].equals("-") ? fs.getFileChecksum(p)
          : fs.getFileChecksum(p, Long.parseLong(a[3]));
      if (sum == null) {
        r.add("none");
        return;
      }
      r.add(sum.getAlgorithmName());
      r.add(Judge.hex(sum.getBytes()));
      r.add(sum.toString());
    });
    // cluster.replicas PATH: of each block its block file and meta file on the first node
    commands.put("cluster.replicas", (a, r) -> {
      DistributedFileSystem fs = cluster.getFileSystem();
      for (LocatedBlock lb : fs.getClient().getLocatedBlocks(Judge.text(a[1]), 0, Long.MAX_VALUE)
          .getLocatedBlocks()) {
        ExtendedBlock b = lb.getBlock();
        File f = cluster.getBlockFile(0, b);
        r.add(Judge.hexText(f.getPath()));
        r.add(Judge.hexText(cluster.getBlockMetadataFile(0, b).getPath()));
      }
    });
  }
}
